"""Ways to make the same update: clipping by the global norm, the update in shares (zero = 1), hooks, learning rate schedules. What
must not change the bits does not, over several backends."""
import json
import math
import os
import shutil
import struct
import subprocess
import sys

import harness
from harness import SRC, Case, Skip, long_case, seldom
from checkpoint_files import read_safetensors

SMALL = {"ddp": {"bucket_size": "1KiB", "first_bucket_size": "1KiB"}}  # several buckets, the last of them uneven
CLIP = {"optimizer": {"clip_norm": 0.5}}
ADAM = {"optimizer": {"algorithm": "adamw", "lr": 0.003, "weight_decay": 0.01, "momentum": None}}


def over(backend, **ddp):
    return {"group": {"backend": backend}, "ddp": ddp}


def floats(body):
    return struct.unpack(f"<{len(body) // 4}f", body)


class Update(Case):
    def backends(self):
        listed = self.run("plugins").out
        return [b for b in ("shm", "gloo-tcp", "mpi") if f" {b} " in listed]

    def hashes(self, runs, *layers, nproc=2):
        """parameter_sha256 of each, by name."""
        return {name: self.train(SMALL, *layers, run, nproc=nproc, name=f"{name}-{nproc}.ini",
                                 env=harness.MPI_LEAKS).summary["parameter_sha256"] for name, run in runs.items()}

    def all_equal(self, hashes):
        self.equal(len(set(hashes.values())), 1, json.dumps(hashes, indent=1))

    # ---- clipping ----------------------------------------------------------------------------------------------------
    def test_clipping_is_the_same_however_the_update_is_made(self):
        runs = {"shm-auto": over("shm", shard_update="auto"), "shm-no": over("shm", shard_update="no"),
                "shm-zero": over("shm", zero=1), "shm-overlap": over("shm", overlap="yes"),
                "gloo-zero": over("gloo-tcp", zero=1), "gloo-zero-overlap": over("gloo-tcp", zero=1, overlap="yes")}
        clipped = self.hashes(runs, CLIP)
        self.all_equal(clipped)
        norms = [m["grad_norm"] for m in self.metrics(self.dir / "shm-no-2.ini.out", "step")]
        self.check(max(norms) > 0.5 > min(norms), norms)  # some steps are clipped, others are not
        for name in runs:
            self.equal([m["grad_norm"] for m in self.metrics(self.dir / f"{name}-2.ini.out", "step")], norms, name)
        plain = self.hashes({"plain": over("shm", shard_update="no")})
        self.check(set(plain.values()) != set(clipped.values()))
        self.check("grad_norm" not in self.metrics(self.dir / "plain-2.ini.out", "step")[0])

    def test_clipping_with_three_ranks_and_accumulation(self):
        more = {"train": {"accumulate": 3, "batch_size": 5}, "data.synthetic": {"samples": 250}}
        self.all_equal(self.hashes({"shm-auto": over("shm"), "shm-no": over("shm", shard_update="no"),
                                    "gloo-zero": over("gloo-tcp", zero=1)}, CLIP, more, nproc=3))

    def weights(self, name, *layers, steps, nproc):
        """All parameters after so many steps, and the run."""
        folder = self.dir / f"{name}-ck"
        r = self.train(*layers, {"train": {"max_steps": steps}, "checkpoint": {"dir": folder, "every": steps}}, nproc=nproc, name=name)
        model = read_safetensors(sorted(folder.glob("step-????????"))[-1] / "model.safetensors")
        return [x for t in model.values() for x in floats(t[2])], r

    def test_grad_norm_is_the_norm_of_the_mean_gradients(self):
        """Plain SGD moves by lr x gradient, so that two checkpoints tell the gradients: torch's total norm is the root of the sum
        of their squares, its coefficient clip / (norm + 1e-6), at most 1."""
        plain = {"optimizer": {"momentum": 0, "lr": 0.5}}
        for nproc, accumulate in ((1, 1), (2, 1), (2, 3)):
            plain["train"] = {"accumulate": accumulate}
            before, _ = self.weights(f"before{nproc}-{accumulate}", plain, {"optimizer": {"lr": 0}}, steps=1, nproc=nproc)
            after, _ = self.weights(f"after{nproc}-{accumulate}", plain, steps=1, nproc=nproc)
            norm = math.sqrt(sum(((b - a) / 0.5) ** 2 for a, b in zip(after, before, strict=True)))
            for clip in (norm / 3, norm * 3):
                clipped, r = self.weights(f"clipped{nproc}-{accumulate}", plain, {"optimizer": {"clip_norm": clip}, "checkpoint": {"resume": "never"}},
                                          steps=1, nproc=nproc)
                shown = self.metrics(r.dir, "step")[0]["grad_norm"]
                self.check(abs(shown - norm) < 1e-5 * norm, (shown, norm))
                moved = math.sqrt(sum(((b - a) / 0.5) ** 2 for a, b in zip(clipped, before, strict=True)))
                want = norm * min(1.0, clip / (norm + 1e-6))
                self.check(abs(moved - want) < 1e-5 * norm, (nproc, clip, moved, want))

    @seldom
    def test_grad_norm_is_torchs(self):
        """clip_grad_norm_ of the same gradients, where PyTorch is there."""
        try:
            import torch
        except ImportError:
            raise Skip("python3 has no torch") from None
        plain = {"optimizer": {"momentum": 0, "lr": 0.5}}
        before, _ = self.weights("before", plain, {"optimizer": {"lr": 0}}, steps=1, nproc=1)
        after, r = self.weights("after", plain, {"optimizer": {"clip_norm": 1e9}}, steps=1, nproc=1)
        p = torch.nn.Parameter(torch.tensor(before))
        p.grad = (torch.tensor(before) - torch.tensor(after)) / 0.5
        total = float(torch.nn.utils.clip_grad_norm_([p], 1e9))
        shown = self.metrics(r.dir, "step")[0]["grad_norm"]
        self.check(abs(shown - total) < 1e-5 * total, (shown, total))

    # ---- zero --------------------------------------------------------------------------------------------------------
    def same_in_shares(self, backends, nproc):
        runs = {f"{b}-{z}": over(b, zero=z) for b in backends for z in (0, 1)}
        for optimizer in ({}, ADAM):
            self.all_equal(self.hashes(runs, optimizer, nproc=nproc))

    @seldom
    def test_zero_is_the_same_with_two_ranks(self):
        self.same_in_shares(self.backends(), 2)

    def test_zero_is_the_same_with_three_ranks(self):
        self.same_in_shares([b for b in self.backends() if b != "mpi"], 3)

    @long_case
    def test_zero_over_mpi_with_three_ranks(self):
        """An MPI library sums in one order for all_reduce and in another for reduce_scatter: each run has the bits of its own kind,
        and they are near each other."""
        if "mpi" not in self.backends():
            raise Skip("backend mpi is not built")
        runs = {name: over("mpi", zero=zero) for name, zero in (("whole", 0), ("shares", 1), ("again", 1))}
        ends = self.hashes(runs, nproc=3)
        self.equal(ends["shares"], ends["again"])
        losses = [[m["loss"] for m in self.metrics(self.dir / f"{name}-3.ini.out", "step")] for name in ("whole", "shares")]
        for a, b in zip(*losses, strict=True):
            self.check(abs(a - b) <= 1e-4 * a, losses)

    def test_zero_overlaps(self):
        self.all_equal(self.hashes({f"{b}-{o}": over(b, zero=1, overlap=o) for b in ("shm", "gloo-tcp") for o in ("yes", "no")}, ADAM))

    def checkpointed(self, name, *layers, nproc=2, folder=None):
        r = self.train(SMALL, ADAM, {"checkpoint": {"dir": self.dir / (folder or name), "every": 20}}, *layers, nproc=nproc, name=name + ".ini")
        return r.summary["parameter_sha256"]

    def test_a_checkpoint_does_not_tell_how_the_update_was_made(self):
        ends = {name: self.checkpointed(name, over("gloo-tcp", zero=zero)) for name, zero in (("whole", 0), ("shares", 1))}
        self.all_equal(ends)
        for step in ("step-00000020", "step-00000040"):
            for file in ("model.safetensors", "optimizer.safetensors"):
                whole, shares = ((self.dir / name / step / file).read_bytes() for name in ends)
                self.check(whole == shares, (step, file))
        states = read_safetensors(self.dir / "shares/step-00000040/optimizer.safetensors")
        self.check(all(any(floats(t[2])) for t in states.values()), "a state is all zeros")
        # each goes on from the other's, and both end as they would have
        for name, zero in (("whole", 1), ("shares", 0)):
            resume = {"checkpoint": {"resume": self.dir / name / "step-00000020"}}
            self.equal(self.checkpointed(f"{name}-again", over("gloo-tcp", zero=zero), resume), ends["whole"], name)
        resume = {"checkpoint": {"resume": self.dir / "shares/step-00000020"}}
        self.equal(self.checkpointed("shm-again", over("shm", zero=1, overlap="yes"), resume), ends["whole"])

    def test_a_checkpoint_in_shares_goes_to_other_worlds(self):
        """At an epoch's end: the same as a checkpoint of whole states does."""
        self.checkpointed("shares", over("gloo-tcp", zero=1))
        for world in (1, 3):
            ends = {}
            for zero in (0, 1):
                folder = f"from{zero}-{world}"
                shutil.copytree(self.dir / "shares", self.dir / folder)
                ends[folder] = self.checkpointed(folder, over("gloo-tcp", zero=zero), {"train": {"epochs": 3}}, nproc=world)
            self.all_equal(ends)
            steps = {m["step"] for m in self.metrics(self.dir / f"from1-{world}.ini.out", "step")}
            self.equal(min(steps), 41, steps)

    # ---- schedules ---------------------------------------------------------------------------------------------------
    def test_lr_of_every_step(self):
        lr, total = 0.05, 40
        schedules = {
            "constant": ({}, lambda i: lr),
            "step": ({"step_size": 7, "gamma": 0.5}, lambda i: lr * 0.5 ** (i // 7)),
            "linear": ({"min_lr": 0.01}, lambda i: lr + (0.01 - lr) * i / total),
            "cosine": ({"min_lr": 0.01, "warmup_steps": 5},
                       lambda i: lr * (i + 1) / 5 if i < 5 else 0.01 + (lr - 0.01) * (1 + math.cos(math.pi * (i - 5) / (total - 5))) / 2)}
        for name, (keys, want) in schedules.items():
            r = self.train({"optimizer": {"schedule": name, **keys}}, name=f"{name}.ini")
            rates = [m["lr"] for m in self.metrics(r.dir, "step")]
            self.equal(len(rates), total)
            for i, rate in enumerate(rates):
                self.check(abs(rate - want(i)) <= 1e-6 * lr, (name, i, rate, want(i)))

    def test_a_resumed_run_goes_on_in_its_schedule(self):
        cosine = {"optimizer": {"schedule": "cosine", "warmup_steps": 5, "clip_norm": 0.5}}
        whole = self.checkpointed("whole", cosine)
        again = self.checkpointed("again", cosine, {"checkpoint": {"resume": self.dir / "whole/step-00000020"}})
        self.equal(again, whole)

    # ---- order on the wire -------------------------------------------------------------------------------------------
    def slow_network(self):
        """A backend on which a bucket takes 1.5 ms, much longer than a backward pass here."""
        plugin = self.dir / "backend_slow.so"
        if not plugin.exists():
            subprocess.run([*os.environ.get("CC", "cc").split(), "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", f"-I{SRC}/core/include",
                            f'-DREAL_BACKEND="{harness.BUILD}/.libs/backend_gloo_tcp.so"', "-o", str(plugin),
                            str(SRC / "tests/integration/support/slow_backend.c")], check=True)
            plugin.chmod(0o755)
        return plugin

    def ordered(self, order, *layers, nproc=2, name="order"):
        keys = {"group": {"backend": self.slow_network()}, "ddp": {"overlap": "yes", "wire_order": order}, "output": {"trace_steps": "3-6"},
                "model.mlp": {"hidden": ", ".join(["24"] * 9)}}
        return self.train(SMALL, keys, *layers, nproc=nproc, name=f"{name}-{order}.ini", env={"SLOW_US": "1500"})

    def reduced(self, run, rank):
        """Buckets in the order in which the wire had them: from a step's last one, in the arena, to the next step's."""
        events = json.loads((run.dir / f"trace-rank{rank}.json").read_text())["traceEvents"]
        begun = [e for e in events if e["ph"] == "X" and e["name"].startswith("all_reduce")]
        order = [e["args"]["bucket"] for e in sorted(begun, key=lambda e: e["ts"])]
        last = [i for i, b in enumerate(order) if b == max(order)]
        return order[last[0]:last[1]]

    @seldom
    def test_the_order_on_the_wire_does_not_change_the_bits(self):
        eval_data = {"eval": {"plugin": "synthetic"}, "eval.synthetic": {"samples": 64, "shape": 12, "classes": 4}}
        more = {"train": {"accumulate": 3, "batch_size": 5, "check_replicas_every": 4}, "data.synthetic": {"samples": 250}, "checkpoint": {"every": 3, "keep": 0}}
        for name, nproc, layers in (("plain", 2, ({"train": {"epochs": 1}},)), ("adam", 3, (ADAM, more, eval_data))):
            at = {o: {"checkpoint": {"dir": self.dir / f"{name}-{o}.ck"}} for o in ("fifo", "forward")}
            runs = {o: self.ordered(o, *layers, at[o], nproc=nproc, name=name) for o in at}
            self.all_equal({o: r.summary["parameter_sha256"] for o, r in runs.items()})
            for key in ("loss", "samples", "step"):
                fifo, forward = ([m.get(key) for m in self.metrics(r.dir, "step")] for r in runs.values())
                self.equal(fifo, forward, key)
            for folder in sorted((self.dir / f"{name}-fifo.ck").glob("step-*")):
                for file in ("model.safetensors", "optimizer.safetensors"):
                    self.check((folder / file).read_bytes() == (self.dir / f"{name}-forward.ck" / folder.name / file).read_bytes(), f"{folder.name}/{file}")

    def test_what_the_next_step_needs_first_goes_first(self):
        runs = {o: self.ordered(o, {"train": {"epochs": 1}}) for o in ("fifo", "forward")}
        last, *fifo = self.reduced(runs["fifo"], 0)
        self.equal(fifo, list(range(last)))
        order = self.reduced(runs["forward"], 0)
        self.equal(order, self.reduced(runs["forward"], 1), "of another rank")
        late = order[:order.index(min(order)) + 1]
        self.equal(late, sorted(late, reverse=True), order)
        self.check(len(late) > 2, f"nothing was left at the end of the backward pass: {order}")
        self.equal(order[len(late):], sorted(order[len(late):]), order)  # of the next backward pass

    @seldom
    def test_a_mean_over_labels_waits_for_the_last_bucket_alone(self):
        text = {"model": {"plugin": "gpt2"}, "model.gpt2": {"preset": "bytes", "layers": 1}, "model.mlp": None,
                "train": {"loss_mean": "token", "epochs": 1, "max_steps": 8, "batch_size": 2}, "data.synthetic": {"samples": 64, "shape": 16, "classes": None, "vocabulary": 256},
                "ddp": {"bucket_size": "64KiB", "first_bucket_size": "64KiB"}}
        self.all_equal({o: self.ordered(o, text, name="token").summary["parameter_sha256"] for o in ("fifo", "forward")})

    # ---- hooks -------------------------------------------------------------------------------------------------------
    def test_the_example_hook_trains(self):
        source = SRC / "docs/examples/hook-skeleton"
        subprocess.run(["cc", "-std=gnu11", "-fPIC", "-fvisibility=hidden", "-shared", f"-I{SRC}/core/include", str(source / "hook_carry.c"),
                        "-o", str(self.dir / "hook_carry.so")], check=True)
        path = {"DDPENGINE_PLUGIN_PATH": str(self.dir)}
        r = self.run("-c", source / "carry.ini", "--nproc", 2, env=path)
        self.equal(r.code, 0, r)
        hook = {"hook": {"plugin": self.dir / "hook_carry.so"}, "train": {"epochs": 4}}
        hashes = {}
        for backend in ("shm", "gloo-tcp"):
            for overlap in ("yes", "no"):
                r = self.train(SMALL, hook, over(backend, overlap=overlap), name=f"{backend}-{overlap}.ini")
                hashes[f"{backend}-{overlap}"] = r.summary["parameter_sha256"]
        self.all_equal(hashes)
        plain = self.train(SMALL, {"train": {"epochs": 4}}, name="plain.ini").summary
        self.check(plain["parameter_sha256"] != r.summary["parameter_sha256"])
        self.check(abs(r.summary["final_loss"] - plain["final_loss"]) < 0.02 * plain["final_loss"], (r.summary, plain))

    # ---- refusals ----------------------------------------------------------------------------------------------------
    def refused(self, *parts, **sections):
        r = self.run("-c", self.ini("refused.ini", sections), "--nproc", 2)
        self.fails(r, 2, *parts)

    def test_refusals(self):
        self.refused("zero = 1", "[hook] plugin", "refused.ini", ddp={"zero": 1}, hook={"plugin": "bf16"})
        self.refused("schedule = step", "step_size", "refused.ini", optimizer={"schedule": "step"})
        for schedule in ("linear", "cosine"):
            self.refused("warmup_steps = 40", "40 steps of the run", "train longer", optimizer={"schedule": schedule, "warmup_steps": 40})
        self.refused("warmup_steps = 9", "schedule_steps", optimizer={"schedule": "cosine", "warmup_steps": 9, "schedule_steps": 9})
        for section, key, value in (("optimizer", "clip_norm", 1), ("optimizer", "ema", 0.9), ("hook", "plugin", "bf16"), ("ddp", "zero", 1), ("ddp", "overlap", "no"),
                                    ("train", "non_finite", "skip"), ("train", "noise_scale", "yes")):
            layers = {"ddp": {"wire_order": "forward"}}
            layers.setdefault(section, {})[key] = value
            self.refused("wire_order = forward", f"[{section}] {key}", "refused.ini", "wire_order = fifo", **layers)
        self.refused("clip_norm", "-1", optimizer={"clip_norm": -1})
        self.refused("zero", "2", ddp={"zero": 2})
        self.refused("schedule", "cosin", "cosine", optimizer={"schedule": "cosin"})


if __name__ == "__main__":
    sys.exit(harness.main(Update))
