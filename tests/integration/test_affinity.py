"""[train] pin: where the threads of a run may run, as the system says; and that OpenMP's threads do not spin."""
import os
import pathlib
import re
import subprocess
import sys
import time

import harness
from harness import SRC, Case, Skip, children_of, until

PROCESSORS = sorted(os.sched_getaffinity(0))
LONG = {"train": {"epochs": 100000}, "output": {"log_every": 1000000}}


def threads_of(pid):
    """{name: [processors that each thread of that name may run on]}; the compute threads are all called ddpengine."""
    out = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            text = (task / "status").read_text()
        except OSError:
            continue  # it has ended
        allowed = []
        for part in re.search(r"^Cpus_allowed_list:\t(\S+)$", text, re.M)[1].split(","):
            first, _, last = part.partition("-")
            allowed += range(int(first), int(last or first) + 1)
        out.setdefault(re.search(r"^Name:\t(.*)$", text, re.M)[1], []).append(allowed)
    return out


class Pin(Case):
    def __init__(self):
        super().__init__()
        if len(PROCESSORS) < 2:
            self.close()
            raise Skip("one processor is not to be shared out")

    def while_it_runs(self, pid, nproc):
        """threads_of each rank once all of its threads are there: the observer, on rank 0, comes last."""
        def ready():
            found = [threads_of(p) for p in (children_of(pid) if nproc > 1 else [pid])]
            return len(found) == nproc and all("ddp-loader-0" in f for f in found) and any("ddp-observe" in f for f in found) and found

        return until(ready, "the ranks do not train")

    def until_training(self, p):
        """What it has printed up to the line that the observer's thread writes a moment after its start: before it, SIGTERM kills."""
        line = ""
        while "training " not in line:
            more = p.stderr.readline()
            self.check(more, f"ended early: {line}")
            line += more
        return line

    def threads(self, *layers, nproc=2):
        """Of each rank the processors of each compute thread. The other threads have all of them, but for the queue thread, which
        has the main thread's unless it works beside that."""
        p = self.start("-c", self.ini("x.ini", LONG, *layers), "--nproc", nproc)
        found = self.while_it_runs(p.pid, nproc)
        line = self.until_training(p)
        p.terminate()
        r = self.finish(p)
        r.err = line + r.err
        self.equal(r.code, 128 + 15, r)
        for f in found:
            self.check(f["ddp-queue"][0] in ([PROCESSORS] if "overlap" in str(layers) else f["ddpengine"]), f)
        for helper in ("ddp-control", "ddp-loader-0", "ddp-observe"):
            for masks in (f[helper] for f in found if helper in f):
                self.equal(masks, [PROCESSORS], helper)
        return [f["ddpengine"] for f in found], r

    def test_each_rank_has_its_processor(self):
        compute, r = self.threads({"train": {"pin": "yes"}})
        self.equal(compute, [[[PROCESSORS[0]]], [[PROCESSORS[1]]]], r)
        self.check(f", rank 0 pinned to processor {PROCESSORS[0]}\n" in r.err, r)

    def test_each_thread_has_its_processor(self):
        compute, r = self.threads({"train": {"pin": "yes", "threads": 2}}, nproc=1)
        self.equal(sorted(compute[0]), [[p] for p in PROCESSORS[:2]], r)
        self.check(re.search(r", pinned to processors \S+(, \S+)?\n", r.err), r)

    def test_each_device_has_its_processor(self):
        toy = {"model": {"plugin": "toy"}, "model.mlp": None, "model.toy": {"place": "fc1:0, fc2:1"},
               "data.synthetic": {"shape": 10, "classes": 0, "outputs": 2}}
        for mode, thread in (("dp", "ddp-replica-1"), ("model", "ddp-stage-1")):
            p = self.start("-c", self.ini("x.ini", LONG, toy, {"train": {"pin": "yes", "parallel": mode, "device": "cpu:0, cpu:1"}}))
            found = self.while_it_runs(p.pid, 1)[0]
            self.until_training(p)
            p.terminate()
            self.equal(self.finish(p).code, 128 + 15)
            self.equal((found["ddpengine"], found[thread]), ([[PROCESSORS[0]]], [[PROCESSORS[1]]]), found)

    def test_a_device_whose_threads_cannot_be_bound(self):
        lib = self.dir / "refuse_binding.so"
        subprocess.run(["cc", "-shared", "-fPIC", str(SRC / "tests/integration/support/refuse_binding.c"), "-o", str(lib)], check=True)
        two = {"train": {"parallel": "dp", "device": "cpu:0, cpu:1", "threads": 1}}
        # a sanitizer's runtime wants to come before all that is preloaded, or to be told that it does not
        env = {"LD_PRELOAD": str(lib), "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}
        for pin, code in (("yes", 3), ("auto", 0)):
            r = self.run("-c", self.ini("x.ini", two, {"train": {"pin": pin}}), env=env)
            self.equal(r.code, code, r)
            self.equal("replica 1 on cpu:1: [train] pin = yes" in r.err, pin == "yes", r)

    def test_auto(self):
        """Pins where the ranks use all processors of the host, and neither where some are left nor where they are too few."""
        if len(PROCESSORS) % 2 or len(PROCESSORS) < (os.cpu_count() or 1):
            raise Skip("the tests may not use all processors of this host, or they are odd in number")
        half = len(PROCESSORS) // 2
        compute, r = self.threads({"train": {"threads": half}})
        self.equal([sorted(c) for c in compute], [[[p] for p in PROCESSORS[:half]], [[p] for p in PROCESSORS[half:]]], r)
        for nproc, threads in ((2, half + 1), (1, 1)):
            compute, r = self.threads({"train": {"threads": threads}}, nproc=nproc)
            self.check(all(mask == PROCESSORS for rank in compute for mask in rank), compute)
            self.check(" not pinned\n" in r.err, r)

    def test_overlap_leaves_the_queue_thread_free(self):
        compute, r = self.threads({"train": {"pin": "yes"}, "ddp": {"overlap": "yes", "shard_update": "no"}})
        self.equal(compute, [[[PROCESSORS[0]]], [[PROCESSORS[1]]]], r)

    def test_no(self):
        compute, r = self.threads({"train": {"pin": "no"}})
        self.check(all(mask == PROCESSORS for rank in compute for mask in rank), compute)
        self.check(", rank 0 not pinned\n" in r.err, r)

    def test_yes_with_too_many_threads(self):
        many = {"train": {"pin": "yes", "threads": len(PROCESSORS)}}
        path = self.ini("x.ini", many)
        for extra in ((), ("--check",)):
            r = self.run("-c", path, "--nproc", 2, *extra)
            self.fails(r, 2, "x.ini:", "[train] pin = yes", "2 ranks", f"{2 * len(PROCESSORS)} threads", f"{len(PROCESSORS)} processor",
                       "lower [train] threads")
        # started by hand, the ranks know of each other only when they have met
        group = {"world_size": 2, "init_method": f"file://{self.dir}/rendezvous", "interface": "lo"}
        both = [self.start("-c", self.ini(f"{r}.ini", many, {"group": {**group, "rank": r}})) for r in (0, 1)]
        for p in both:
            self.fails(self.finish(p), 2, "[train] pin = yes", "lower [train] threads")

    def test_check_tells(self):
        for pin, phrase in (("yes", f"pinned to processor {PROCESSORS[0]}"), ("no", "not pinned")):
            r = self.run("-c", self.ini("x.ini", {"train": {"pin": pin}}), "--nproc", 2, "--check")
            self.equal(r.code, 0, r)
            self.check(re.search(rf"^model .*, 1 thread, {phrase}$", r.out, re.M), r)

    def test_bound_already(self):
        """What something else has bound is left alone; yes shares out what there is."""
        one = f"{PROCESSORS[-1]}"
        path = self.ini("x.ini", {"train": {"max_steps": 2}})
        for pin, phrase in (("auto", "not pinned"), ("yes", f"pinned to processor {one}")):
            p = self.start("-c", path, "--set", f"train.pin={pin}", affinity={PROCESSORS[-1]})
            r = self.finish(p)
            self.equal(r.code, 0, r)
            self.check(f", {phrase}\n" in r.err, r)

    def test_the_bits_do_not_change(self):
        runs = [self.train({"train": {"pin": pin}}, name=f"{pin}.ini") for pin in ("yes", "no")]
        self.equal(runs[0].summary["parameter_sha256"], runs[1].summary["parameter_sha256"])

    def test_openmp_waits_asleep(self):
        """A thread that spins takes a processor from the other ranks. What the user sets stays."""
        path = self.ini("x.ini")
        for env, policy, spins in (({}, "PASSIVE", "0"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE", None),
                                   ({"GOMP_SPINCOUNT": "77"}, None, "77")):
            r = self.run("-c", path, "--check", env={"OMP_DISPLAY_ENV": "verbose", **env})
            self.equal(r.code, 0, r)
            if "GOMP_SPINCOUNT" not in r.err:
                raise Skip("this is not GNU's OpenMP")
            self.check(policy is None or f"OMP_WAIT_POLICY = '{policy}'" in r.err, r)
            self.check(spins is None or f"GOMP_SPINCOUNT = '{spins}'" in r.err, r)

    def test_openmp_keeps_its_threads(self):
        """GNU's OpenMP ends the threads that a smaller parallel region leaves out, and starts new ones for the next larger one."""
        p = self.start("-c", self.ini("x.ini", LONG, {"train": {"threads": 4, "batch_size": 64}, "model.mlp": {"hidden": "512, 512"}}))
        seen = set()
        self.while_it_runs(p.pid, 1)
        for _ in range(100):
            seen |= set(os.listdir(f"/proc/{p.pid}/task"))
            time.sleep(0.01)
        compute = len(threads_of(p.pid)["ddpengine"])
        p.terminate()
        self.finish(p)
        self.equal(compute, 4)
        self.check(len(seen) <= 10, f"{len(seen)} threads within a second")


if __name__ == "__main__":
    sys.exit(harness.main(Pin))
