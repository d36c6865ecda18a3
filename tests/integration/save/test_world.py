"""A run that goes on with another number of ranks: the global batch and its samples stay, each sample comes once an epoch, and
the losses are those of a run whose ranks never changed. tests/unit/data/test_split.c has the arithmetic."""
import json
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from checkpoint_files import read_safetensors  # noqa: E402
from harness import Case, long_case  # noqa: E402

# a step has 14 samples: 7 and 7, 5 5 4, 14, 4 4 3 3
PLAN = {"train": {"epochs": 1, "global_batch": 14, "batch_size": 4, "even_batches": "no"}, "data.synthetic": {"samples": 283}}
# a loss that has no labels
TOY = {"model": {"plugin": "toy"}, "model.mlp": None, "model.toy": {"net": "relu"}, "data.synthetic": {"shape": 10, "classes": None}}


class World(Case):
    def go(self, folder, nproc, steps, *layers, expect=0):
        """Up to step `steps`, 0 being the end, from the newest checkpoint of the folder."""
        out = {"output": {"dir": self.dir / folder, "log_every": 1, "audit": "yes"}, "checkpoint": {"dir": self.dir / folder / "ck"},
               "train": {"max_steps": steps}}
        r = self.run("-c", self.ini("go.ini", PLAN, *layers, out), "--nproc", nproc)
        self.equal(r.code, expect, r)
        return r

    def losses(self, folder):
        steps = self.metrics(self.dir / folder, "step")
        self.equal([s["step"] for s in steps], list(range(1, len(steps) + 1)))
        return [s["loss"] for s in steps]

    def alike(self, a, b, tolerance=1e-5):
        self.equal(len(a), len(b))
        self.check(max(abs(x - y) for x, y in zip(a, b)) <= tolerance, (a, b))

    def once(self, folder, epochs=1):
        r = self.run("audit", self.dir / folder)
        self.equal(r.code, 0, r)
        self.equal(re.findall(r"^epoch (\d+): (\d+) of (\d+) samples exactly once(.*)$", r.out, re.M),
                   [(str(e + 1), "283", "283", "") for e in range(epochs)])

    def parameters(self, folder):
        newest = sorted((self.dir / folder / "ck").glob("step-????????"))[-1]
        return [x for _, (_, _, raw) in sorted(read_safetensors(newest / "model.safetensors").items()) for x in memoryview(raw).cast("f")]

    def test_2_3_1_4_in_one_epoch(self):
        self.go("fixed", 2, 0)
        fixed = self.losses("fixed")
        self.equal(len(fixed), 21)
        for nproc, steps in ((2, 4), (3, 9), (1, 13), (4, 0)):
            r = self.go("moved", nproc, steps)
            self.check(steps == 4 or "resuming from" in r.err, r)
        self.alike(self.losses("moved"), fixed)
        self.alike(self.parameters("moved"), self.parameters("fixed"))
        self.once("fixed")
        self.once("moved")
        starts = [s["world_size"] for s in self.metrics(self.dir / "moved", "start")]
        self.equal(starts, [2, 3, 1, 4])
        rows = [json.loads(line) for line in (self.dir / "moved/ranks.jsonl").read_text().splitlines()]
        self.equal([len(r["ranks"]) for r in rows if r["event"] == "start"], [2, 3, 4])

    def test_loss_without_labels(self):
        """Against a rank alone, whose batches are even. Micro-batches of 3 and 2 samples; of one sample, which some ranks lack."""
        early = {"group": {"backend": "gloo-tcp"}, "ddp": {"overlap": "yes", "bucket_size": 64, "first_bucket_size": 64}}
        for batch, micro, samples in ((14, 3, 280), (7, 1, 70)):
            small = {"train": {"global_batch": batch}, "data.synthetic": {"samples": samples}}
            self.go(f"fixed{batch}", 1, 0, TOY, small, {"train": {"even_batches": "yes", "batch_size": None}})
            for nproc, steps in ((3, 3), (2, 6), (4, 0)):
                self.go(f"moved{batch}", nproc, steps, TOY, small, early, {"train": {"batch_size": micro}})
            self.alike(self.losses(f"moved{batch}"), self.losses(f"fixed{batch}"))

    def test_ways_of_an_update(self):
        sent = {"group": {"backend": "gloo-tcp"}, "ddp": {"bucket_size": "1KiB", "first_bucket_size": "1KiB"}}
        self.go("fixed", 1, 6)
        for i, ddp in enumerate(({"overlap": "yes"}, {"zero": 1})):
            for nproc, steps in ((3, 4), (2, 6)):
                self.go(f"moved{i}", nproc, steps, sent, {"ddp": ddp})
            self.alike(self.losses(f"moved{i}"), self.losses("fixed"))
        clip = {"optimizer": {"clip_norm": 0.3}}
        self.go("clipped", 1, 6, clip)
        for nproc, steps in ((2, 4), (3, 6)):
            self.go("clips", nproc, steps, clip, sent)
        self.alike(self.losses("clips"), self.losses("clipped"))

    def test_the_global_batch_stays(self):
        """As batch_size says, 24 of three ranks would be in a step; no setting names the 16 that two have had."""
        own = {"train": {"global_batch": None, "batch_size": 8, "even_batches": "auto"}}
        self.go("fixed", 2, 0, own, {"train": {"even_batches": "no"}})
        r = self.go("moved", 2, 4, own)
        self.check("global batch" not in r.err, r)
        r = self.run("-c", self.dir / "go.ini", "--nproc", 3, "--check")
        self.equal(r.code, 0, r)
        self.check("goes on from" in r.out + r.err and "batch at most 6 x accumulate 1 x 3 ranks for a step of 16" in r.out + r.err, r)
        r = self.go("moved", 3, 6, own)
        self.check("the checkpoint is of 2 ranks and this run has 3: the global batch of 16 samples stays" in r.err, r)
        self.check("with 3 ranks, each step of 16" in r.err, r)
        r = self.go("moved", 3, 8, own)
        self.check("with 3 ranks, each step of 16" in r.err and "global batch" not in r.err, r)
        r = self.go("moved", 4, 12, own)
        self.check("with 4 ranks, each step of 16" in r.err, r)
        self.alike(self.losses("moved"), self.losses("fixed")[:12])
        # who writes another one gets it, where that can be
        r = self.go("moved", 4, 14, own, {"train": {"batch_size": 2}}, expect=8)
        self.fails(r, 8, "in the middle of an epoch with a global batch of 16 (batch_size 4, accumulate 1, world_size 4) and seed 3; "
                         "this run has 8 and seed 3", "set [train] global_batch")
        self.go("moved", 4, 13, own, {"train": {"batch_size": 2, "accumulate": 2}})
        # from the first change on each sample comes once, with as many ranks as the sampler would repeat some for too
        self.go("moved", 4, 0, own, {"train": {"batch_size": 2, "accumulate": 2}})
        self.alike(self.losses("moved"), self.losses("fixed"))
        self.once("moved")

    def test_replicas_and_ranks(self):
        own = {"train": {"global_batch": None, "batch_size": 7, "even_batches": "auto"}, "data.synthetic": {"samples": 280}}
        dp = {"train": {"parallel": "dp", "device": "cpu:0, cpu:1"}}
        self.go("fixed", 2, 0, own)
        for nproc, steps, more in ((1, 4, dp), (3, 8, {}), (1, 12, dp), (3, 0, {})):
            self.go("moved", nproc, steps, own, more)
        self.alike(self.losses("moved"), self.losses("fixed"))
        r = self.run("report", self.dir / "moved", "-o", self.dir / "report.html")
        self.equal(r.code, 0, r)

    def test_what_cannot_be(self):
        even = {"train": {"even_batches": "yes", "batch_size": None}}
        self.fails(self.go("a", 3, 1, even, expect=2), 2, "14 cannot be divided by 3 (it can with a world_size of 1, 2, 7, 14)")
        own = {"train": {"global_batch": None, "batch_size": 7, "even_batches": "yes"}}
        self.go("b", 2, 1, own)
        self.fails(self.go("b", 3, 2, own, expect=2), 2, "14 cannot be divided by 3", "1, 2, 7, 14")
        self.fails(self.go("c", 4, 1, {"train": {"global_batch": 3}}, expect=2), 2, "there are fewer samples in a step than ranks")
        dp = {"train": {"parallel": "dp", "device": "cpu:0, cpu:1"}}
        self.fails(self.go("d", 1, 1, dp, expect=2), 2, "even_batches = no needs ranks with one device each")

    def test_another_order(self):
        """A sampler whose order depends on the number of ranks: the samples of a step would be others."""
        (self.dir / "plugins").mkdir()
        subprocess.run(["cc", "-shared", "-fPIC", f"-I{harness.SRC}/core/include", harness.SRC / "tests/integration/support/blocks_sampler.c",
                        "-o", self.dir / "plugins/sampler_blocks.so"], check=True)
        own = {"sampler": {"plugin": "blocks"}, "plugins": {"path": self.dir / "plugins"}, "train": {"even_batches": "auto", "global_batch": 16}, "data.synthetic": {"samples": 288}}
        self.go("a", 2, 4, own)
        r = self.go("a", 4, 6, own, expect=8)
        self.fails(r, 8, 'sampler "blocks" gives the samples in another order with 2 ranks than with one', "as many ranks as before")
        self.go("a", 2, 6, own)

    def test_hooks(self):
        hook = {"hook": {"plugin": "powersgd"}, "group": {"backend": "gloo-tcp"}, "hook.powersgd": {"rank": 1, "start_step": 2}}
        self.go("a", 2, 6, hook)
        r = self.go("a", 3, 8, hook)
        self.check('hook "powersgd": each of the 3 ranks goes on with the mean of what 2 ranks have not sent' in r.err
                   or 'hook "powersgd" starts from scratch' in r.err, r)

    @long_case
    def test_restarts(self):
        """A rank is lost after the change: those that are left, and the one that is started in its place, keep the batch."""
        own = {"train": {"global_batch": None, "batch_size": 8, "even_batches": "auto", "epochs": 200},
               "group": {"backend": "gloo-tcp", "peer_timeout": "2s"}, "run": {"restarts": 5, "restart_delay": "0s"}}
        self.go("a", 2, 4, own)
        out = {"output": {"dir": self.dir / "a", "log_every": 20, "audit": "yes"}, "checkpoint": {"dir": self.dir / "a/ck"}}
        p = self.start("-c", self.ini("again.ini", PLAN, own, out), "--nproc", 3)
        self.trained_a_while(p)
        self.signal(self.children(p, 3)[1], 9)
        r = self.finish(p)
        self.equal(r.code, 0, r)
        self.check("from the memory of rank" in r.err, r)
        self.once("a", 200)
        self.equal(json.loads((self.dir / "a/summary.json").read_text())["steps"], 200 * 18)


if __name__ == "__main__":
    sys.exit(harness.main(World))
