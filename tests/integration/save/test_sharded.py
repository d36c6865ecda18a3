"""[checkpoint] sharded: under zero = 1 each rank writes its shard of the optimiser's state, and what is saved is the same."""
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from disk import ADAMW, DiskCase  # noqa: E402
from harness import children_of, until  # noqa: E402
from checkpoint_files import xxh128  # noqa: E402

ZERO = {"group": {"backend": "gloo-tcp"}, "ddp": {"zero": 1}}
SHARDED = {"checkpoint": {"sharded": "yes"}}
THREE = [f"optimizer-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]


class Sharded(DiskCase):
    def files(self, folder, step):
        return sorted(p.name for p in (self.dir / folder / f"step-{step:08}").iterdir())

    def summary(self, folder):
        return json.loads((self.dir / f"{folder}.out/summary.json").read_text())

    def left(self, folder):
        return [p.name for p in (self.dir / folder).iterdir() if p.suffix in (".part", ".tmp")]

    def test_the_same_state(self):
        """As one file of rank 0 has it, beside training and in the step; merged it is that file, byte for byte but for the order."""
        self.train(*self.layers("whole", ADAMW, ZERO), name="whole.ini", nproc=3)
        for how in ("yes", "no"):
            r = self.train(*self.layers(how, ADAMW, ZERO, SHARDED), {"checkpoint": {"async": how}}, name=how + ".ini", nproc=3)
            self.equal(len(re.findall("is durable", r.err)), 3, r)
            self.all_verify(how, ["step-00000005", "step-00000010", "step-00000012"])
            self.equal([m["step"] for m in self.metrics(self.dir / f"{how}.out", "checkpoint")], [5, 10, 12])
            for step in (5, 12):
                one = self.dir / how / f"step-{step:08}"
                self.equal(self.files(how, step), ["MANIFEST.json", "model.safetensors", *THREE])
                whole = self.dir / "whole" / one.name
                r = self.run("checkpoint", "diff", whole, one)
                self.check("position: 0 differ" in r.out and "tensors: 18 in both, of which 0 differ; 0 of another dtype or shape, 0 only in A, "
                           "0 only in B" in r.out, r)
                self.equal(self.run("checkpoint", "merge", one, self.dir / f"merged-{how}").code, 0)
                self.equal(self.files(f"merged-{how}", step), ["MANIFEST.json", "model.safetensors", "optimizer.safetensors"])
                r = self.run("checkpoint", "diff", whole, self.dir / f"merged-{how}" / one.name)
                self.check("tensors: 18 in both, of which 0 differ" in r.out, r)
                before = self.files(f"merged-{how}", step)
                for folder in (f"merged-{how}", how):  # neither a merged one nor the shards themselves are replaced
                    r = self.run("checkpoint", "merge", one, self.dir / folder)
                    self.fails(r, 8, f"{folder}/{one.name} is there already, and is not replaced")
                self.equal(self.files(f"merged-{how}", step), before)
                self.equal(self.files(how, step), ["MANIFEST.json", "model.safetensors", *THREE])
            self.equal(self.left(how), [])

    def test_resume_with_another_number_of_ranks(self):
        """From shards, at the end of an epoch: to shards, to one file, and to a state that is not divided, with the same bits."""
        self.train(*self.layers("first", ADAMW, ZERO, SHARDED, steps=14), name="first.ini", nproc=3)
        hashes = []
        for name, ranks, more in (("a", 2, SHARDED), ("b", 2, {}), ("c", 2, {"ddp": {"zero": 0}})):
            shutil.copytree(self.dir / "first", self.dir / name)
            r = self.train(*self.layers(name, ADAMW, ZERO, more, steps=18), {"train": {"batch_size": 24}}, name=name + ".ini", nproc=ranks)
            self.check("resuming from" in r.err and "step-00000014" in r.err, r)
            hashes.append(self.summary(name)["parameter_sha256"])
        self.equal(len(set(hashes)), 1, hashes)
        self.check("optimizer-00002-of-00002.safetensors" in self.files("a", 18), self.files("a", 18))

    def test_damage(self):
        """A shard that is damaged or missing is found, and an older checkpoint taken; so is a manifest of later versions."""
        self.train(*self.layers("ck", ADAMW, ZERO, SHARDED), name="ck.ini", nproc=3)
        shard = self.dir / "ck/step-00000012" / THREE[1]
        raw = bytearray(shard.read_bytes())
        raw[-3] ^= 4
        shard.write_bytes(raw)
        (self.dir / "ck/step-00000010" / THREE[2]).unlink()
        r = self.run("checkpoint", "verify", self.dir / "ck")
        self.fails(r, 8, "2 of the 3 checkpoints")
        self.check(f"{THREE[1]} is damaged" in r.out and f"{THREE[2]}: No such file" in r.out, r)
        r = self.train(*self.layers("ck", ADAMW, ZERO, SHARDED, steps=6), name="again.ini", nproc=3)
        self.check("resuming from" in r.err and "step-00000005" in r.err, r)
        self.equal(json.loads((self.dir / "ck/step-00000005/MANIFEST.json").read_text())["shards"], 3)

    def forge(self, folder, change):
        """The manifest, changed by somebody who knows how its checksum is made."""
        path = folder / "MANIFEST.json"
        manifest = json.loads(path.read_text())
        change(manifest)
        del manifest["checksum"]
        text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        text = re.sub(r"\\u[0-9a-f]{4}", lambda m: "\\u" + m[0][2:].upper(), text)
        path.write_text(json.dumps({**manifest, "checksum": hashlib.sha256(text.encode()).hexdigest()}))

    def test_names_of_strangers(self):
        """None reaches the terminal as it is, be it a tensor's, a hash, a model, or what stands where JSON should."""
        self.train(*self.layers("good", ADAMW, ZERO, SHARDED, steps=1), name="good.ini", nproc=3)
        evil, good, bad = "\x1b[31m\x9b1m", self.dir / "good/step-00000001", self.dir / "bad"

        def tensor(manifest):
            raw = (folder / THREE[1]).read_bytes()
            header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
            tensors = list(header.items())
            tensors[0] = (evil, tensors[0][1])
            head = json.dumps(dict(tensors)).encode()
            raw = len(head).to_bytes(8, "little") + head + raw[8 + int.from_bytes(raw[:8], "little"):]
            (folder / THREE[1]).write_bytes(raw)
            manifest["files"][THREE[1]] = {"bytes": len(raw), "xxh128": xxh128(raw)}

        changes = {1: tensor, 2: lambda m: m["files"][THREE[0]].update(xxh128=evil + "0" * 23), 3: lambda m: m.update(model=evil), 4: None}
        for step, change in changes.items():
            folder = bad / f"step-{step:08}"
            shutil.copytree(good, folder)
            if change is None:
                (folder / "MANIFEST.json").write_text("{" + evil)
            else:
                self.forge(folder, lambda m, step=step, change=change: (m.update(step=step), change(m)))
        outs = [self.run("checkpoint", "verify", bad), self.run("checkpoint", "ls", bad), self.run("checkpoint", "diff", good, bad / "step-00000003")]
        for r, parts in zip(outs, (("is no piece of a tensor", f"{THREE[0]} is damaged", "not valid JSON"), ("not valid JSON",), ("model ", " | "))):
            self.check(all(part in r.out for part in parts), r)
            self.check(not any(c in r.out + r.err for c in evil[:1] + evil[5]), r)

    def test_a_shard_that_cannot_be_written_ends_the_run(self):
        """On any rank: exit code 8, one error, the checkpoint before it stays and nothing of this one."""
        self.train(*self.layers("bad", ADAMW, ZERO, SHARDED, steps=5), name="good.ini", nproc=3)
        self.disk()
        (self.switches / "broken").write_text("-2.part")
        r = self.finish(self.begin("short", "bad", ADAMW, ZERO, SHARDED, nproc=3, steps=1000000))
        self.fails(r, 8, "rank 2: cannot flush", "bad/step-00000010.", "-2.part", "Input/output error")
        self.check("is durable" not in r.err, r)
        self.all_verify("bad", ["step-00000005"])
        self.equal(self.left("bad"), [])

    def test_a_shard_that_does_not_come(self):
        """Rank 0 waits for it as long as for a collective. (A third rank would wait for both of them, at the next save.)"""
        self.disk()
        (self.switches / "hold").write_text("-1.part")
        r = self.finish(self.begin("short", "slow", ADAMW, ZERO, SHARDED, {"group": {"step_timeout": "1s"}}, steps=1000000))
        self.fails(r, 8, "rank 1 has not written its shard of the checkpoint of step 5", "1 s after", "raise [group] step_timeout")
        self.equal(self.left("slow"), [])

    def test_a_folder_that_the_ranks_do_not_share(self):
        """Whether a rank tells it from its own thread or in the step."""
        for how in ("yes", "no"):
            port, ranks = harness.free_port(), []
            for rank in range(2):
                group = {"group": {"rank": rank, "world_size": 2, "init_method": f"tcp://127.0.0.1:{port}"}}
                folder = {"checkpoint": {"dir": self.dir / f"of-{rank}", "async": how}}
                ranks.append(self.start("-c", self.ini(f"r{rank}.ini", *self.layers("of-0", ADAMW, ZERO, SHARDED), group, folder)))
            for r in [self.finish(p) for p in ranks]:
                self.fails(r, 8, "rank 1: ", "of-1 is not there on this rank's host", "[checkpoint] sharded needs a dir that all ranks share",
                           "sharded = no")
            self.equal(self.left("of-0"), [])

    def test_killed_while_shards_are_written(self):
        """What is left goes with the next run, of which no save has the same name."""
        parts = []
        for _ in range(2):  # starts of the same run: a rank that is left of the first writes to no file of the second
            p = self.begin("hold", "kill", ADAMW, ZERO, SHARDED, nproc=3, steps=1000000)
            self.held()
            until(lambda: len(self.left("kill")) == 3, lambda: f"not all write: {self.left('kill')}")
            for pid in [p.pid, *children_of(p.pid)]:
                os.kill(pid, signal.SIGKILL)
            self.finish(p)
            self.no_processes_left("kill.ini")
            self.switch("held", on=False)  # by those that came to the disk later
            parts += [name for name in self.left("kill") if name.endswith(".part")]
        self.equal(len(set(parts)), 4, parts)
        self.switch("hold", on=False)
        self.equal(len(self.left("kill")), 3)
        r = self.train(*self.layers("kill", ADAMW, ZERO, SHARDED, every=4, steps=6), name="again.ini", nproc=3)
        self.equal(self.left("kill"), [])
        self.all_verify("kill", ["step-00000004", "step-00000006"])

    def test_a_lost_rank(self):
        """Under restarts the run goes on from the newest checkpoint, of shards, and ends with the bits of one that lost nobody."""
        self.train(*self.layers("calm", ADAMW, ZERO, SHARDED, steps=60), name="calm.ini", nproc=3)
        run = {"run": {"restarts": 3, "restart_delay": "0s"}, "group": {"peer_timeout": "1s"}}
        p = self.begin("hold", "lost", ADAMW, ZERO, SHARDED, run, nproc=3, steps=60)
        self.held()
        os.kill(children_of(p.pid)[1], signal.SIGKILL)
        until(lambda: "lost one" in p.stderr.readline(), "nobody misses it")
        self.switch("hold", on=False)
        r = self.finish(p)
        self.equal(r.code, 0, r)
        self.equal(self.summary("lost")["parameter_sha256"], self.summary("calm")["parameter_sha256"], r)
        self.equal(self.left("lost"), [])
        self.check("optimizer-00003-of-00003.safetensors" in self.files("lost", 60), self.files("lost", 60))


if __name__ == "__main__":
    sys.exit(harness.main(Sharded))
