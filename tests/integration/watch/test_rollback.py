"""[train] non_finite = rollback and replicas_differ = rollback: the run goes back to the newest checkpoint and ends with the
bits of one that had no fault; a fault that comes again ends it. The device `flawed` (support/flawed_device.c) makes the
faults."""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import harness  # noqa: E402
from flawed import WAYS, Flawed, buffered, compiled, device, over  # noqa: E402
from harness import SRC, long_case  # noqa: E402

# 20 steps an epoch; checkpoints of steps 7, 14, 21, ..
BACK = {"train": {"non_finite": "rollback", "epochs": 2, "max_steps": 26}, "output": {"audit": "yes"}}
DIFFER = {"train": {"replicas_differ": "rollback", "check_replicas_every": 5, "epochs": 2, "max_steps": 26}, "output": {"audit": "yes"}}
NAN = "grad:1:22:20:1"  # element 20 of the gradients of rank 1, in step 23
ADAMW = {"optimizer": {"algorithm": "adamw", "lr": 0.003, "momentum": None}}


class Rollback(Flawed):
    def saves(self, name, every=7):
        return {"checkpoint": {"dir": self.dir / f"{name}.ck", "every": every, "keep": 0}}

    def hashes(self, run):
        return run.summary["parameter_sha256"], run.summary["buffer_sha256"]

    def went_back(self, run, *steps, refused=False):
        """To these steps, after one warning each; `refused`: the last fault ended the run."""
        self.equal([m["step"] for m in self.metrics(run.dir, "rollback")], list(steps), run)
        self.equal(len(self.warnings(run)), len(steps), run)
        if not refused:
            audit = self.run("audit", run.dir)
            self.equal(audit.code, 0, audit)
            self.check(f"rollbacks of the ranks: {len(steps) + 1};" in audit.out, audit)

    def same_bits(self, name, flaw, *layers, to, **more):
        """As without the fault; `to`: the step that the run goes back to."""
        want = self.flawed("", *layers, self.saves(f"{name}_whole"), name=f"{name}_whole", **more)
        r = self.flawed(flaw, *layers, self.saves(name), name=name, times=1, **more)
        self.went_back(r, to)
        self.equal(self.hashes(r), self.hashes(want), r)
        return r

    # ---- what is not finite ------------------------------------------------------------------------------------------
    def test_bits_are_those_of_a_run_without_the_fault(self):
        r = self.same_bits("direct", NAN, BACK, WAYS["direct"], ADAMW, to=21)
        (step, text), = self.warnings(r)
        self.check(step == 23 and "gradient of fc3.weight (element 4) of rank 1 is not finite" in text and "go back" in text, text)
        self.check("going back to" in r.err and "step-00000021: step 21, epoch 2" in r.err, r)
        self.same_bits("zero", NAN, BACK, WAYS["zero"], ADAMW, to=21)
        self.same_bits("forward", NAN, BACK, over("gloo-tcp", overlap="yes", wire_order="forward"), {"model.mlp": {"hidden": "24, 24, 24, 17"}}, ADAMW, to=21)

    def test_adapters_in_one_copy(self):
        """Ranks that share what is trained, on a base in f32 and in bf16."""
        lora = {"lora": {"rank": 3}}
        self.same_bits("lora", NAN, BACK, WAYS["direct"], ADAMW, lora, to=21)
        self.same_bits("half", NAN, BACK, WAYS["direct"], ADAMW, lora, {"train": {"precision": "bf16"}}, to=21)

    @long_case
    def test_every_way(self):
        listed = self.run("plugins").out
        for name, way in WAYS.items():
            if f" {way['group']['backend']} " not in listed:
                print(f"# {name} is not built")
                continue
            for algorithm, more in (("sgd", {}), ("adamw", ADAMW)):
                self.same_bits(f"{name}_{algorithm}", NAN, BACK, way, more, to=21)
        self.same_bits("restarts", NAN, BACK, over("gloo-tcp"), {"run": {"restarts": 1}}, to=21)
        for hook in ("int8", "powersgd"):
            self.same_bits(hook, NAN, BACK, over("shm"), {"hook": {"plugin": hook}}, to=21)
        self.same_bits("one", "grad:0:22:20:1", BACK, to=21, world=1, nproc=1)
        for replica in (0, 1):
            dp = {"train": {"parallel": "dp", "device": f"{device(self)}:0, {device(self)}:1"}}
            self.same_bits(f"dp{replica}", f"grad:{replica}:22:20:1", BACK, dp, to=21, nproc=1)
        toy = {"train": {"parallel": "model", "device": f"{device(self)}:0, {device(self)}:1", "accumulate": 2},
               "model": {"plugin": "toy"}, "model.mlp": None, "model.toy": {"net": "relu", "place": "net1:0, net2:1"},
               "data.synthetic": {"shape": 10, "classes": None}}
        self.same_bits("model", "grad:0:44:20:2", BACK, toy, to=21, nproc=1, world=1)

    def test_without_a_checkpoint_the_run_begins_again(self):
        """As it began, running statistics and states included."""
        model = buffered(self)
        short = {"train": {"max_steps": 5}}
        model.update(ADAMW)
        want = self.flawed("", BACK, short, model, name="whole")
        r = self.flawed("grad:1:2:20:1", BACK, short, model, name="again", times=1)
        self.went_back(r, 0)
        self.check("the parameters that the run began with" in r.err, r)
        self.equal(self.hashes(r), self.hashes(want), r)

    def test_a_hook_that_carries_something_needs_a_checkpoint(self):
        r = self.flawed("grad:1:2:20:1", BACK, over("shm"), {"hook": {"plugin": "int8"}}, name="hook", expect=8)
        self.fails(r, 8, "cannot go back", '"int8"')

    def test_the_same_step_again_ends_the_run(self):
        r = self.flawed(NAN, BACK, self.saves("twice"), name="twice", times=2, expect=7)
        self.went_back(r, 21, refused=True)
        self.fails(r, 7, "step 23", "of rank 1", "fc3.weight", "went back to step 21 and made it again")

    def test_so_many_times_in_a_row(self):
        """At another step each time: 23, 24, 25, 26."""
        for limit, times, code in ((3, 3, 0), (2, 3, 7)):
            r = self.flawed("later:1:22:20:0", BACK, {"train": {"rollback_limit": limit}}, self.saves(f"limit{limit}"),
                            name=f"limit{limit}", times=times, expect=code)
            self.equal([step for step, _ in self.warnings(r)], [23, 24, 25][:limit], r)
            self.went_back(r, *[21] * limit, refused=code != 0)
        self.fails(r, 7, "step 25", "gone back to step 21 2 times", "rollback_limit")

    @long_case
    def test_a_rank_is_lost_while_the_ranks_go_back(self):
        """Killed in the midst of it, when the parameters have come and the optimiser's state has not, or in the step that is made
        again: the run ends as one that has only gone back. The other rank makes the fault, once, for a new process would do so again."""
        compiled(self, "failing_backend.c", "backend_failing.so", f"-I{SRC}/docs/examples/backend-skeleton")
        run = [BACK, over("failing", overlap="no"), {"plugins": {"path": self.dir}, "run": {"restarts": 1, "restart_delay": "0s"}}]
        want = self.flawed("", *run, self.saves("lost"), name="lost")
        buckets = int(re.search(r"^buckets +(\d+)", self.run("-c", self.dir / "lost", "--check").out, re.M).group(1))
        for victim in (0, 1):
            for kind, call in (("FAIL_BROADCAST", 3), ("FAIL", 23 * buckets + 1)):
                name = f"{kind}{victim}"
                r = self.flawed(f"grad:{1 - victim}:22:20:1", *run, self.saves(name), name=name, times=1,
                                env={kind: f"{victim}:{call}:{self.dir / name}.killed"})
                self.equal(self.hashes(r), self.hashes(want), r)
                self.check(f"rank {victim} (pid" in r.err and "was killed by signal 9" in r.err, r)
                source = r"resuming from \S+step-00000021" if kind == "FAIL_BROADCAST" else f"memory of rank {1 - victim}"
                self.check(re.search(f"{source}: step 21", r.err), r)
                audit = self.run("audit", r.dir)
                self.equal(audit.code, 0, audit)

    @long_case
    def test_a_damaged_checkpoint_is_not_the_one(self):
        """It is damaged when the run resumes from an older one, whose later ones are set aside only then."""
        whole = self.flawed("", BACK, self.saves("damaged"), {"train": {"max_steps": 14}}, name="first")
        self.equal(whole.summary["steps"], 14)
        path = self.dir / "damaged.ck/step-00000014/model.safetensors"
        path.write_bytes(path.read_bytes()[:-1])
        want = self.flawed("", BACK, name="whole")
        r = self.flawed("grad:1:8:20:1", BACK, self.saves("damaged", every=20), {"output": {"audit": "no"}}, name="damaged", times=1)
        self.equal([m["step"] for m in self.metrics(r.dir, "rollback")], [7], r)
        self.equal(self.hashes(r), self.hashes(want), r)

    def test_replicas_have_to_be_compared(self):
        r = self.run("-c", self.ini("x.ini", {"train": {"replicas_differ": "rollback"}}), "--nproc", 2)
        self.fails(r, 2, "x.ini:", "replicas_differ = rollback", "check_replicas_every")

    # ---- replicas that differ ----------------------------------------------------------------------------------------
    def test_a_rank_that_differs_is_named(self):
        r = self.same_bits("differs", "bit:2:22:20:9", DIFFER, WAYS["gloo"], to=21, world=3, nproc=3)
        (step, text), = self.warnings(r)
        self.check(step == 25 and "the parameters of rank 2 on host" in text and "not bit for bit those of rank 0 and all others" in text, text)

    def test_two_ranks_cannot_tell_which(self):
        r = self.same_bits("two", "bit:0:22:20:9", DIFFER, WAYS["gloo"], to=21)
        (step, text), = self.warnings(r)
        self.check(step == 25 and "no majority" in text and "rank 0 on host" in text and "rank 1 on host" in text, text)

    def test_no_checkpoint_is_of_replicas_that_differ(self):
        """A save is preceded by a comparison, which also finds a wrong state of the optimiser."""
        often = {"train": {"replicas_differ": "abort", "check_replicas_every": 1000}}
        lora = {"lora": {"rank": 3}, **ADAMW}  # of what is not trained there is no state
        for name, flaw, where, more in (("param", "bit:0:14:20:9", "first in fc3.weight;", {}),
                                        ("state", "state:0:14:20:9", "first in the optimiser's state of fc3.weight;", {}),
                                        ("lora", "state:0:14:20:9", "first in the optimiser's state of base_model.model.fc2.lora_", lora)):
            r = self.flawed(flaw, DIFFER, often, more, self.saves(name), name=name, expect=9)
            self.fails(r, 9, "step 14:", where)
            self.equal([p.name for p in (self.dir / f"{name}.ck").glob("step-*")], ["step-00000007"])

    def test_replicas_that_differ_again_end_the_run(self):
        r = self.flawed("bit:1:22:20:9", DIFFER, self.saves("again"), name="again", times=2, expect=9)
        self.went_back(r, 21, refused=True)
        self.fails(r, 9, "step 25", "differ", "went back to step 21 and made it again")


if __name__ == "__main__":
    sys.exit(harness.main(Rollback))
