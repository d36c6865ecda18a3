"""What a step must not do: allocate (the core's threads and the device), or create oneDNN primitives after the first one."""
import collections
import re
import subprocess
import sys

import harness
from harness import SRC, Case, Skip, long_case

# 10 steps an epoch
MLP = {"train": {"epochs": 11, "batch_size": 64}, "model.mlp": {"hidden": "64, 48", "classes": 10},
       "data.synthetic": {"samples": 64 * 2 * 10, "shape": 100, "classes": 10}, "loader": {"workers": 2}}

# its convolutions are oneDNN's
LENET = {"model": {"plugin": "lenet"}, "model.mlp": None, "model.lenet": {"classes": 4}, "data.synthetic": {"shape": "1, 20, 20", "classes": 4}}
BUCKETS = {"ddp": {"first_bucket_size": "4KiB", "bucket_size": "8KiB"}}
ZERO = {"optimizer": {"algorithm": "adamw", "momentum": None, "clip_norm": 1, "schedule": "cosine"}, "group": {"backend": "gloo-tcp"},
        "ddp": {"zero": 1, **BUCKETS["ddp"]}}


class Step(Case):
    def compile(self, source, target, *flags):
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", f"-I{SRC}/core/include", *flags, f"{SRC}/tests/integration/support/{source}", "-o",
                        str(target), "-ldl"], check=True)
        return target

    def counts(self, first, last, extra, *args, nproc=2):
        """Allocations between the starts of two epochs by (thread, object), all ranks together."""
        if harness.SANITIZED:
            raise Skip("a sanitizer owns malloc")
        lib = self.compile("count_malloc.c", self.dir / "libcount_malloc.so")
        (self.dir / "plugins").mkdir(exist_ok=True)
        self.compile("counting_sampler.c", self.dir / "plugins/sampler_counting.so")
        path = self.ini("x.ini", MLP, extra, {"sampler": {"plugin": "counting"}, "plugins": {"path": self.dir / "plugins"},
                                              "output": {"dir": self.dir / "out"}})
        r = self.run("-c", path, "--nproc", nproc, *args, env={"LD_PRELOAD": str(lib), "COUNT_MALLOC": str(self.dir / "count"),
                                                    "COUNT_FROM": str(first), "COUNT_TO": str(last)})
        self.equal(r.code, 0, r)
        total = collections.Counter()
        files = list(self.dir.glob("count.*"))
        self.check(len(files) >= nproc, "no table was written")
        for f in files:
            for line in f.read_text().splitlines():
                thread, obj, n = line.split("\t")
                total[thread, obj] += int(n)
            f.unlink()
        return total

    def none_between_steps_10_and_100(self, *ways):
        """Not by any thread of the core, not by any object but wrapped libraries; Gloo's shim on its own thread only. The control
        thread sends heartbeats, by the clock, and OpenSSL has buffers for them: what it allocates is less than once a step."""
        for args, extra, nproc in ways:
            libraries = ("libdnnl", "libgloo", "libgomp")
            heartbeat = [("ddp-control", obj) for obj in ("ddpengine", "libssl.so.3", "libcrypto.so.3")]
            counts = self.counts(1, 10, extra, *args, nproc=nproc)
            ours = {k: n for k, n in counts.items()
                    if not k[1].startswith(libraries) and k not in (("ddp-queue", "backend_gloo_tcp.so"), *heartbeat)}
            self.equal(ours, {}, "allocations between steps 10 and 100")
            self.check(counts[heartbeat[0]] < nproc * 90, counts)

    def test_no_allocation_between_steps_10_and_100(self):
        start = self.counts(0, 1, {})
        self.check(any(obj == "device_cpu.so" for _, obj in start), f"the counter did not see the device compile: {start}")
        self.none_between_steps_10_and_100(([], {}, 2), ([], ZERO, 2))

    @long_case
    def test_no_allocation_in_other_ways(self):
        adamw = {"optimizer": {"algorithm": "adamw", "momentum": None}, "train": {"accumulate": 2, "batch_size": 32},
                 "ddp": {"overlap": "yes", "first_bucket_size": "4KiB", "bucket_size": "8KiB"}}
        dp = {"train": {"parallel": "dp", "device": "cpu:0, cpu:1", "accumulate": 2}}
        stages = {"train": {"parallel": "model", "device": "cpu:0, cpu:1", "accumulate": 4, "batch_size": 32},
                  "model": {"plugin": "toy"}, "model.toy": {"net": "relu", "loss": "cross_entropy", "place": "net1:0, net2:1"},
                  "data.synthetic": {"shape": 10, "classes": 5}, "model.mlp": None}
        int8 = {"hook": {"plugin": "int8"}, **BUCKETS}
        forward = {"group": {"backend": "gloo-tcp"}, "ddp": {**BUCKETS["ddp"], "overlap": "yes", "wire_order": "forward"}}
        powersgd = {"hook": {"plugin": "powersgd"}, "hook.powersgd": {"start_step": 15, "rank": 2}, **BUCKETS}
        traced = {"output": {"trace_steps": "5-100"}}
        self.none_between_steps_10_and_100((["--profile"], {}, 2), ([], adamw, 2), ([], dp, 1), ([], stages, 1), ([], int8, 2), ([], forward, 2),
                                           ([], powersgd, 2), ([], traced, 2))

    def test_no_primitive_after_the_first_step(self):
        harness.needs_onednn()
        path = self.ini("x.ini", LENET, {"train": {"max_steps": 30}})
        r = self.run("-c", path, env={"DNNL_VERBOSE": "2"})
        self.equal(r.code, 0, r)
        kinds = re.findall(r"^(?:onednn|dnnl)_verbose,(?:v1,)?(?:primitive,)?(create|exec)\b", r.out, re.M)
        self.check(kinds.count("exec") >= 30 and "create" in kinds, kinds[:20])
        self.check("create" not in kinds[kinds.index("exec"):], "a primitive was created after the first kernel had run")


if __name__ == "__main__":
    sys.exit(harness.main(Step))
