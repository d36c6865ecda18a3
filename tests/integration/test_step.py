"""What a step must not do: allocate (the core's threads and the device), or create oneDNN primitives after the first one."""
import collections
import re
import subprocess
import sys

import harness
from harness import SRC, Case, Skip

MLP = {"train": {"epochs": 1, "batch_size": 64}, "model.mlp": {"hidden": "64, 48", "classes": 10},
       "data.synthetic": {"samples": 64 * 2 * 128, "shape": 100, "classes": 10}, "loader": {"workers": 2}}


class Step(Case):
    def counts(self, steps, extra):
        """Allocations of a whole run by (thread, object), both ranks together."""
        lib = self.dir / "libcount_malloc.so"
        if not lib.exists():
            subprocess.run(["cc", "-O1", "-shared", "-fPIC", f"{SRC}/tests/integration/count_malloc.c", "-o", str(lib), "-ldl"],
                           check=True)
        prefix = self.dir / f"count{steps}"
        path = self.ini("x.ini", MLP, extra, {"train": {"max_steps": steps}})
        r = self.run("-c", path, "--nproc", 2, env={"LD_PRELOAD": str(lib), "COUNT_MALLOC": str(prefix)})
        self.equal(r.code, 0, r)
        total = collections.Counter()
        files = list(self.dir.glob(f"count{steps}.*"))
        self.check(len(files) >= 2, "no table was written")
        for f in files:
            for line in f.read_text().splitlines():
                thread, obj, n = line.split("\t")
                total[thread, obj] += int(n)
            f.unlink()
        return total

    def test_no_allocation_between_steps_10_and_100(self):
        """A run of 100 steps allocates no more than one of 10: by no thread of the core, by no object but wrapped libraries."""
        if harness.SANITIZED:
            raise Skip("a sanitizer owns malloc")
        for extra in ({}, {"optimizer": {"algorithm": "adamw", "momentum": None}, "train": {"accumulate": 2, "batch_size": 32},
                           "ddp": {"overlap": "yes", "first_bucket_size": "4KiB", "bucket_size": "8KiB"}}):
            short, long = self.counts(10, extra), self.counts(100, extra)
            grown = {k: (short[k], n) for k, n in long.items() if n > short[k]}
            self.check(any("ddpengine" in obj for _, obj in long), "the counter saw nothing of the core")
            libraries = ("libdnnl", "libgloo", "libgomp", "backend_gloo_tcp.so")
            ours = {k: v for k, v in grown.items() if not k[1].startswith(libraries)}
            self.equal(ours, {}, "allocations that grow with the steps")
            device = {k: v for k, v in grown.items() if k[1].startswith("backend_gloo") and k[0] != "ddp-queue"}
            self.equal(device, {}, "Gloo's shim allocates outside its queue thread")

    def test_no_primitive_after_the_first_step(self):
        path = self.ini("x.ini", MLP, {"train": {"max_steps": 30}})
        r = self.run("-c", path, env={"DNNL_VERBOSE": "2"})
        self.equal(r.code, 0, r)
        kinds = re.findall(r"^(?:onednn|dnnl)_verbose,(create|exec)\b", r.out, re.M)
        self.check(kinds.count("exec") >= 30 and "create" in kinds, kinds[:20])
        self.check("create" not in kinds[kinds.index("exec"):], "a primitive was created after the first kernel had run")


if __name__ == "__main__":
    sys.exit(harness.main(Step))
