"""The watch on the numbers: updates that are left out where something is not finite, on every way of an update; losses far
above the usual one; a parameter bit that flips. The device `flawed` (support/flawed_device.c) makes the faults."""
import os
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import harness  # noqa: E402
from flawed import WAYS, Flawed, buffered, device, over  # noqa: E402
from harness import long_case, seldom  # noqa: E402
from checkpoint_files import read_safetensors  # noqa: E402

SKIP = {"train": {"non_finite": "skip", "epochs": 1, "max_steps": 8}}
# the weights of the last two layers in the arena, whose order is the reverse of the model's; neither is padding
ELEMENTS = ((20, "fc3.weight (element 4)"), (500, "fc2.weight (element 372)"))


class Watch(Flawed):
    def same_after(self, name, before, after):
        """Whether parameters, running statistics and states of two checkpoints have the same bytes."""
        a, b = (self.dir / f"{name}.ck/step-{step:08d}" for step in (before, after))
        return [read_safetensors(a / f) == read_safetensors(b / f) for f in ("model.safetensors", "optimizer.safetensors")]

    def left_out(self, name, way, rank, element, tensor, **more):
        r = self.flawed(f"grad:{rank}:4:{element}:1", SKIP, self.saved(name), way, name=name, **more)
        (step, text), = self.warnings(r)
        self.equal(step, 5, text)
        self.check(f"gradient of {tensor} of rank {rank} is not finite" in text and "1 of at most 10" in text, text)
        self.equal(self.same_after(name, 4, 5), [True, True], name)
        self.equal(self.same_after(name, 5, 6), [False, False], name)
        self.equal([m["loss"] is None for m in self.metrics(r.dir, "step")], [i == 4 for i in range(8)])
        return r.summary["parameter_sha256"]

    @seldom
    def test_an_update_is_left_out_on_every_way(self):
        listed, ends = self.run("plugins").out, {}
        for number, (name, way) in enumerate(WAYS.items()):
            if f" {way['group']['backend']} " not in listed:
                print(f"# {name} is not built")
                continue
            element, tensor = ELEMENTS[number % 2]
            ends[name] = self.left_out(name, way, number // 2 % 2, element, tensor)
        same = {ends[n] for n in ends if n not in ("clip", "hook")}
        self.equal(len(same), 1, ends)

    @long_case
    def test_the_rank_is_the_right_one_wherever_the_shard_is(self):
        """With shards in shared memory the mean has taken the place of a rank's own gradients."""
        for rank in (0, 1):
            for element, tensor in ELEMENTS:
                self.left_out(f"r{rank}e{element}", over("shm"), rank, element, tensor)

    def test_a_single_rank_replicas_and_stages(self):
        self.left_out("one", {}, 0, *ELEMENTS[0], nproc=1, world=1)
        for replica in (0, 1):
            dp = {"train": {"parallel": "dp", "device": f"{device(self)}:0, {device(self)}:1"}}
            r = self.flawed(f"grad:{replica}:4:20:1", SKIP, self.saved(f"dp{replica}"), dp, name=f"dp{replica}", nproc=1)
            (step, text), = self.warnings(r)
            self.check(step == 5 and ("on flawed:1" in text or "flawed.so:1" in text) == (replica == 1), text)
            self.equal(self.same_after(f"dp{replica}", 4, 5), [True, True])
        toy = {"train": {"parallel": "model", "device": f"{device(self)}:0, {device(self)}:1", "accumulate": 2},
               "model": {"plugin": "toy"}, "model.mlp": None, "model.toy": {"net": "relu", "place": "net1:0, net2:1"},
               "data.synthetic": {"shape": 10, "classes": None}}
        r = self.flawed("grad:0:9:20:1", SKIP, self.saved("model"), toy, name="model", nproc=1, world=1)
        self.equal([step for step, _ in self.warnings(r)], [5])
        self.equal(self.same_after("model", 4, 5), [True, True])

    def test_running_statistics_are_as_before(self):
        r = self.flawed("grad:1:4:20:1", SKIP, self.saved("bn"), buffered(self), name="bn")
        self.equal(len(self.warnings(r)), 1)
        self.equal(self.same_after("bn", 4, 5), [True, True])

    def test_too_many_in_a_row_end_the_run(self):
        limit = {"train": {"non_finite_limit": 2}}
        for count, code in ((2, 0), (3, 7)):
            r = self.flawed(f"grad:1:2:20:{count}", SKIP, limit, name=f"limit{count}", expect=code)
            self.equal([step for step, _ in self.warnings(r)], [3, 4])
        self.fails(r, 7, "step 5", "of rank 1", "fc3.weight", "2 updates before it", "non_finite_limit")

    def test_a_loss_that_stays_wild_ends_the_run(self):
        r = self.train(SKIP, {"optimizer": {"lr": 1e30}, "train": {"non_finite_limit": 3, "max_steps": 30}}, expect=7)
        self.fails(r, 7, "not finite", "3 updates before it")

    def test_refusals(self):
        r = self.run("-c", self.ini("hook.ini", SKIP, {"hook": {"plugin": "int8"}}), "--nproc", 2)
        self.fails(r, 2, "non_finite = skip", '"int8"', "non_finite = abort")
        for spike in (0.5, 1):
            self.fails(self.run("-c", self.ini("spike.ini", {"train": {"loss_spike": spike}})), 2, "loss_spike", "spike.ini:", "above 1")
        self.fails(self.run("-c", self.ini("what.ini", {"train": {"non_finite": "go on"}})), 2, "non_finite", "abort", "skip")

    def test_a_loss_spike_is_one_warning(self):
        """A learning rate that grows throws the loss up."""
        wild = {"optimizer": {"lr": 0.05, "schedule": "step", "step_size": 30, "gamma": 200}, "train": {"loss_spike": 3, "epochs": 2}}
        r = self.train(wild, nproc=2)
        (step, text), = self.warnings(r)
        self.check(step > 30 and "times the usual" in text, text)
        m, = self.metrics(r.dir, "warning")
        self.check(m["loss"] > 3 * m["usual_loss"] > 0, m)
        self.equal(self.train({**wild, "train": {"loss_spike": 0}}, name="off").err.count("times the usual"), 0)

    # ---- a parameter bit ---------------------------------------------------------------------------------------------
    def flip(self, draw, name):
        """One random bit of one random parameter on one random rank, right after a random update that a check follows."""
        world, every = draw.choice((2, 3)), draw.choice((1, 2, 3))
        rank, step = draw.randrange(world), every * draw.randrange(1, 4)
        params = {"fc1.weight": (24, 12), "fc1.bias": (24,), "fc2.weight": (17, 24), "fc2.bias": (17,), "fc3.weight": (4, 17), "fc3.bias": (4,)}
        at, tensor = {}, draw.choice(list(params))
        position = 0
        for n in reversed(params):  # the order of the arena, each at a multiple of 16: a bias comes first, as last used
            at[n] = position
            rows, cols = (params[n] + (1,))[:2]
            position += -(-rows * cols // 16) * 16
        rows, cols = (params[tensor] + (1,))[:2]
        element, bit = at[tensor] + draw.randrange(rows * cols), draw.randrange(32)
        what = f"{name}: rank {rank} of {world}, {tensor}, element {element}, bit {bit}, step {step}, check every {every}"
        backend = draw.choice(("shm", "gloo-tcp"))
        one = {**over(backend, bucket_size="25MiB", first_bucket_size="1MiB"), "train": {"check_replicas_every": every, "max_steps": 12}}
        r = self.flawed(f"bit:{rank}:{step}:{element}:{bit}", one, name=name, world=world, nproc=world, expect=9)
        named = f"rank {rank} on" if world > 2 else "rank 1 on"
        self.fails(r, 9, f"step {step}:", named, f"first in {tensor};")
        return what

    def flips(self, count):
        seed = int(os.environ.get("DDP_SEED", "20261123"))
        draw = random.Random(seed)
        print(f"# seed {seed}")
        for i in range(count):
            try:
                what = self.flip(draw, f"flip{i}")
            except AssertionError as why:
                raise AssertionError(f"flip {i} of seed {seed}: {why}") from None
        print(f"# {count} of {count}, the last one: {what}")

    def test_a_flipped_bit_is_found_at_the_next_check(self):
        self.flips(2)

    @long_case
    def test_a_hundred_flipped_bits_are_found(self):
        self.flips(100)


if __name__ == "__main__":
    sys.exit(harness.main(Watch))
