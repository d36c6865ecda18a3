"""Datasets in files, and what is done to their images, in whole runs: files that are wrong, that differ between ranks, that
are cut short while they are read; the same data whatever the number of workers and after a restart."""
import os
import re
import struct
import sys

import harness
from harness import Case, Skip, seldom, until

NO_SYNTHETIC = {"data.synthetic": None, "model.mlp": {"input": "image", "classes": 10, "hidden": 16}}
AUGMENTED = {"padding": 3, "random_crop": 30, "flip": 0.5, "mean": "0.5, 0.4, 0.3", "std": 0.25}
CIFAR_FILES = [f"data_batch_{n}.bin" for n in range(1, 6)]


def noise(count, seed=1):
    out, x = bytearray(), seed
    for _ in range(count):
        x = x * 1103515245 + 12345 & 0xFFFFFFFF
        out.append(x >> 23 & 255)
    return bytes(out)


class Data(Case):
    def cifar(self, folder="cifar", records=16, **keys):
        """A small CIFAR-10 whose images tell their label; returns the layer that trains on it."""
        path = self.dir / folder
        path.mkdir(exist_ok=True)
        for f, name in enumerate(CIFAR_FILES + ["test_batch.bin"]):
            rows = []
            for k in range(records):
                label = (k + f) % 10
                rows.append(bytes([label]) + bytes([20 * label]) * 1024 + noise(2048, 7 + f * 1000 + k))
            (path / name).write_bytes(b"".join(rows))
        return {**NO_SYNTHETIC, "data": {"plugin": "cifar", **keys}, "data.cifar": {"folder": path}}

    # ---- runs ------------------------------------------------------------------------------------------------------
    def test_cifar_is_learnt(self):
        layer = self.cifar(**AUGMENTED)
        evaluated = {"eval": {"plugin": "cifar", "center_crop": 30}, "eval.cifar": {"folder": self.dir / "cifar", "split": "test"}}
        r = self.train(layer, evaluated, {"train": {"epochs": 30}, "optimizer": {"lr": 0.01}})
        steps = self.metrics(r.dir, "step")
        self.check(steps[-1]["loss"] < steps[0]["loss"] / 2, (steps[0], steps[-1]))
        self.check(r.summary["eval_accuracy"] > 0.5, r.summary)

    def test_evaluation_has_the_means_of_training(self):
        layer = self.cifar(mean="0.5, 0.4, 0.3", std=0.25)
        evaluated = {"eval": {"plugin": "cifar"}, "eval.cifar": {"folder": self.dir / "cifar", "split": "test"}}
        losses = [self.train(layer, evaluated, extra, name=f"{n}.ini").summary["eval_loss"]
                  for n, extra in enumerate(({}, {"eval": {"mean": "0.5, 0.4, 0.3", "std": "0.25, 0.25, 0.25"}},
                                             {"eval": {"mean": 0, "std": 1}}))]
        self.equal(losses[0], losses[1])
        self.check(losses[2] != losses[0], losses)

    def test_plan_tells_the_transforms(self):
        r = self.run("-c", self.ini("x.ini", self.cifar(resize="40, 36", **AUGMENTED)), "--check")
        self.equal(r.code, 0, r)
        self.check("u8 3x32x32 -> resize 40x36 (antialias) -> padding 3 -> random crop 30x30 -> flip 0.5 -> normalise" in r.out, r)

    def test_workers_change_nothing(self):
        layer = self.cifar(**AUGMENTED)
        hashes = {self.train(layer, {"loader": {"workers": w, "prefetch": p}}, name=f"w{w}.ini").summary["parameter_sha256"]
                  for w, p in ((0, 4), (1, 2), (3, 7))}
        self.equal(len(hashes), 1, hashes)
        plain = self.train(self.cifar(center_crop=30, mean="0.5, 0.4, 0.3", std=0.25), name="plain.ini")
        self.check(plain.summary["parameter_sha256"] not in hashes)

    def test_stopped_and_resumed_is_the_uninterrupted_run(self):
        layer = self.cifar(**AUGMENTED)
        whole = self.train(layer, {"train": {"epochs": 5}}, name="whole.ini")
        saved = {"checkpoint": {"dir": self.dir / "saved"}}
        self.train(layer, saved, {"train": {"epochs": 5, "max_steps": 7}}, name="first.ini")
        rest = self.train(layer, saved, {"train": {"epochs": 5}, "loader": {"workers": 3}}, name="rest.ini")
        self.equal(rest.summary["steps"], whole.summary["steps"])
        self.equal(rest.summary["parameter_sha256"], whole.summary["parameter_sha256"])

    def test_stl10(self):
        (self.dir / "train_X.bin").write_bytes(noise(12 * 27648))
        (self.dir / "train_y.bin").write_bytes(bytes([1 + k % 10 for k in range(12)]))
        layer = {**NO_SYNTHETIC, "data": {"plugin": "stl10", "resize": 24, "antialias": "no"}, "data.stl10": {"folder": self.dir}}
        self.train(layer, {"train": {"batch_size": 2}})

    @seldom
    def test_fashion_mnist_keeps_its_bits(self):
        """The idx dataset gives floats: without a key of [data] nothing is done to them, with a flip of 0 neither."""
        if not harness.FASHION.exists():
            raise Skip("dataset-fashion-mnist is not installed")
        layer = {**NO_SYNTHETIC, "data": {"plugin": "idx"}, "data.idx": {"limit": 320, "mean": 0.286, "std": 0.353}}
        a = self.train(layer, name="a.ini").summary["parameter_sha256"]
        own = {**NO_SYNTHETIC, "data": {"plugin": "idx", "mean": 0.286, "std": 0.353}, "data.idx": {"limit": 320}}
        self.equal(self.train(own, name="b.ini").summary["parameter_sha256"], a)
        flipped = {**layer, "data": {"plugin": "idx", "flip": 0.5}}
        self.check(self.train(flipped, name="c.ini").summary["parameter_sha256"] != a)

    # ---- agreement -------------------------------------------------------------------------------------------------
    def pair(self, first, second):
        group = {"group": {"init_method": f"tcp://127.0.0.1:{harness.free_port()}", "world_size": 2, "rendezvous_timeout": "20s"}}
        a = self.start("-c", self.ini("node1.ini", group, {"group": {"rank": 0}}, first))
        b = self.start("-c", self.ini("node2.ini", group, {"group": {"rank": 1}}, second))
        return self.finish(a), self.finish(b)

    def test_one_byte_differs_between_ranks(self):
        first, second = self.cifar("one"), self.cifar("two")
        with open(self.dir / "two" / "data_batch_3.bin", "r+b") as f:
            f.seek(3073 * 5 + 2000)
            byte = f.read(1)
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte[0] ^ 1]))
        for r in self.pair(first, second):
            self.fails(r, 4, "data.fingerprint", "dataset cifar")

    def test_transforms_are_compared(self):
        first, second = self.cifar("one", flip=0.5), self.cifar("one", flip=0.25)
        for r in self.pair(first, second):
            self.fails(r, 4, "data.flip", "0.5", "0.25", "node1.ini:", "node2.ini:")

    # ---- files that change -----------------------------------------------------------------------------------------
    def cut_while_training(self, layer, path, size):
        out = self.dir / "out"
        config = {"train": {"epochs": 1000000}, "output": {"dir": out, "log_every": 1}}
        p = self.start("-c", self.ini("cut.ini", layer, config), "--nproc", 2)
        until(lambda: p.poll() is not None or (out / "metrics.jsonl").exists() and self.metrics(out, "step"), "no step")
        os.truncate(path, size)
        self.fails(self.finish(p), 10, path, "Something has truncated it", re.compile(r"sample \d+ of the dataset"))

    def metrics(self, folder, event=None):
        """Lines of a run that goes on: the last one may not be whole yet."""
        try:
            return super().metrics(folder, event)
        except ValueError:
            return []

    def test_cifar_cut_short_while_training(self):
        layer = self.cifar(**AUGMENTED)
        self.cut_while_training(layer, self.dir / "cifar" / "data_batch_2.bin", 4000)

    def test_idx_cut_short_while_training(self):
        images, labels = self.dir / "images", self.dir / "labels"
        images.write_bytes(struct.pack(">4I", 0x0803, 640, 20, 20) + noise(640 * 400))
        labels.write_bytes(struct.pack(">2I", 0x0801, 640) + bytes(k % 10 for k in range(640)))
        layer = {**NO_SYNTHETIC, "data": {"plugin": "idx"}, "data.idx": {"images": images, "labels": labels}}
        self.cut_while_training(layer, images, 5000)

    # ---- mistakes --------------------------------------------------------------------------------------------------
    def wrong(self, code, layer, *parts):
        self.fails(self.run("-c", self.ini("x.ini", NO_SYNTHETIC, layer), "--nproc", 2), code, *parts)

    def test_mistakes(self):
        good = self.cifar()
        folder = self.dir / "cifar"
        self.wrong(2, {"data": {"plugin": "cifar"}}, "[data.cifar]", "folder is not set")
        self.wrong(10, {"data": {"plugin": "cifar"}, "data.cifar": {"folder": self.dir / "none"}}, self.dir / "none/data_batch_1.bin",
                   "No such file")
        self.wrong(2, {**good, "data": {"plugin": "cifar", "random_crop": 33}}, "[data]", "random_crop = 33, 33")
        self.wrong(2, {**good, "data": {"plugin": "cifar", "flip": 1.5}}, "flip", "1.5")
        self.wrong(2, {**good, "data": {"plugin": "cifar", "mean": "1, 2"}}, "mean has 2 numbers")
        self.wrong(2, {**good, "eval": {"plugin": "cifar", "center_crop": 28}, "eval.cifar": {"folder": folder}}, "[eval]", "image")
        self.wrong(2, {"data": {"plugin": "synthetic", "flip": 0.5}, "data.synthetic": {"shape": 12}}, "[data]", "no field \"image\"")
        os.truncate(folder / "data_batch_5.bin", 3000)
        self.wrong(10, good, folder / "data_batch_5.bin", "3000", "3073")
        (self.dir / "text").write_bytes(b"too short")
        self.wrong(10, {"data": {"plugin": "tokens"}, "data.tokens": {"files": self.dir / "text"}}, self.dir / "text", "9 tokens", "256")


if __name__ == "__main__":
    sys.exit(harness.main(Data))
