#!/usr/bin/env python3
"""Tests of the installed package: python conf/packaging/python/tests/test_module.py in an environment that has the wheel
and nothing else; tests/bundle.sh does so. They decide by what happened, never by how long it took."""
import array
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

import ddpengine
from ddpengine._run import _Lines

FEATURES, SAMPLES = 6, 64
INI = """
[train]
epochs = 3
batch_size = 8
threads = 1
[model]
plugin = layers
[model.layers]
net = run.net
[data]
plugin = npy
[data.npy]
input = x.npy
label = y.npy
[optimizer]
lr = 0.02
"""
NET = """
[input] field = input
[linear] out = 5
[relu]
[linear] out = 2
[loss] type = mse
"""


def npy(path: pathlib.Path, shape: tuple[int, ...], numbers: array.array) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + numbers.tobytes())


class Case(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="ddpengine-test-")
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)
        self.dir = pathlib.Path(folder.name)
        pick = random.Random(5)
        self.x = array.array("f", [pick.uniform(-1, 1) for _ in range(SAMPLES * FEATURES)])
        npy(self.dir / "x.npy", (SAMPLES, FEATURES), self.x)
        npy(self.dir / "y.npy", (SAMPLES, 2), array.array("f", [pick.uniform(-1, 1) for _ in range(SAMPLES * 2)]))
        (self.dir / "run.ini").write_text(INI)
        (self.dir / "run.net").write_text(NET)

    def steps(self, *args: object, **options: object) -> list[int]:
        return [m["step"] for m in ddpengine.train("run.ini", *args, **options) if m["event"] == "step"]


class Train(Case):
    def test_gives_metrics_as_they_come(self) -> None:
        run = ddpengine.train("run.ini", set={"train.batch_size": 16})
        self.assertIsNone(run.exit_code)
        metrics = list(run)
        self.assertEqual([m["event"] for m in metrics], ["start"] + ["step"] * 12 + ["end"])
        self.assertEqual(metrics[0]["global_batch"], 16)
        self.assertEqual([m["step"] for m in metrics[1:-1]], list(range(1, 13)))
        self.assertTrue(all(isinstance(m["loss"], float) for m in metrics[1:-1]))
        self.assertEqual((run.exit_code, metrics[-1]["exit_code"]), (0, 0))
        self.assertFalse(run.folder.exists(), "a folder that nobody asked for stays")
        with self.assertRaises(StopIteration):
            next(run)

    def test_ranks_and_log(self) -> None:
        said: list[str] = []
        metrics = list(ddpengine.train("run.ini", nproc=2, log=said.append))
        self.assertEqual(metrics[0]["world_size"], 2)
        self.assertTrue(any("2 ranks" in line for line in said), said)

    def test_values_of_settings(self) -> None:
        (self.dir / "a b").mkdir()
        self.assertEqual(self.steps({"train.max_steps": 2, "output.dir": self.dir / "a b/out", "output.tensorboard": False,
                                     "optimizer.no_decay": ["*.bias", "*.weight"]}), [1, 2])
        text = (self.dir / "a b/out/settings.ini").read_text()
        self.assertIn("no_decay = *.bias, *.weight", text)
        with self.assertRaisesRegex(ValueError, "section.key"):
            ddpengine.train("run.ini", {"max_steps": 2})

    def test_a_file_that_has_lines_already(self) -> None:
        keys = {"output.dir": "out", "checkpoint.dir": "ckpt"}
        self.assertEqual(self.steps({**keys, "train.epochs": 1}), list(range(1, 9)))
        self.assertEqual(self.steps({**keys, "train.epochs": 2}), list(range(9, 17)), "a resumed run gives its own steps")
        self.assertEqual(len((self.dir / "out/metrics.jsonl").read_text().splitlines()) > 18, True)
        self.assertEqual(self.steps({**keys, "checkpoint.resume": "never"}), list(range(1, 25)), "an emptied file is read from its start")
        with (self.dir / "out/metrics.jsonl").open("a") as file:
            file.write('{"event": "step", "st')
        self.assertEqual(self.steps({**keys, "train.epochs": 4}), list(range(25, 33)))

    def test_an_emptied_file_that_is_longer_by_now(self) -> None:
        """Between two looks at it a run has emptied it and written more than there was; what is half written comes later."""
        path = self.dir / "metrics.jsonl"
        path.write_text('{"time": 1}\n')
        lines = _Lines(path)
        self.assertEqual(lines.new(), [])
        path.write_text('{"time": 2}\n{"step": 1}\n{"st')
        self.assertEqual(lines.new(), [{"time": 2}, {"step": 1}])
        path.write_text('{"time": 2}\n{"step": 1}\n{"step": 2}\n')
        self.assertEqual(lines.new(), [{"step": 2}])
        path.unlink()
        self.assertEqual(lines.new(), [])
        path.write_text('{"event": "warning"}\n')
        self.assertEqual(lines.new(), [{"event": "warning"}])

    def test_errors_are_the_programs(self) -> None:
        for values, code, part in (({"train.batch_sice": 8}, 2, "batch_size"), ({"model.plugin": "nowhere"}, 3, "no such plugin"),
                                   ({"data.npy.input": "gone.npy"}, 10, "gone.npy"),
                                   ({"optimizer.lr": 1e30, "train.epochs": 9}, 7, "not finite")):
            with self.subTest(values), self.assertRaises(ddpengine.Error) as caught:
                list(ddpengine.train("run.ini", values))
            self.assertEqual(caught.exception.exit_code, code, caught.exception)
            self.assertIn(part, caught.exception.line)
            self.assertNotIn("ddpengine:", caught.exception.line)
        with self.assertRaises(ddpengine.Error):
            ddpengine.train("none.ini")

    def test_the_environment_is_the_users(self) -> None:
        """The program is no script that sets something: what it starts has the same environment."""
        self.assertEqual(ddpengine.program().read_bytes()[:4], b"\x7fELF")
        self.assertEqual(subprocess.run([ddpengine.program(), "--version"], capture_output=True, text=True, env={}, check=True)
                         .stdout.split()[1], ddpengine.__version__)


class Stop(Case):
    def setUp(self) -> None:
        super().setUp()  # whoever starts these tests with &
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))

    ENDLESS = {"train.epochs": 1000000, "checkpoint.dir": "ckpt", "output.dir": "out"}

    def saved(self) -> int:
        return max(int(p.name.partition("-")[2]) for p in (self.dir / "ckpt").glob("step-*"))

    def last_step(self) -> int:
        lines = [json.loads(line) for line in (self.dir / "out/metrics.jsonl").read_text().splitlines()]
        return max(m["step"] for m in lines if m["event"] == "step")

    def test_stop_saves(self) -> None:
        with ddpengine.train("run.ini", self.ENDLESS, nproc=2) as run:
            first = next(m for m in run if m["event"] == "step")
        self.assertEqual(first["step"], 1)
        self.assertEqual(run.exit_code, 128 + signal.SIGINT)
        rest = list(run)
        self.assertEqual(rest[-1]["event"], "end")
        self.assertEqual(self.saved(), max(m["step"] for m in rest if m["event"] == "step"))

    def test_stop_where_sigint_is_ignored(self) -> None:
        """As in what a script starts with &."""
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.SIG_IGN))
        with ddpengine.train("run.ini", self.ENDLESS) as run:
            next(m for m in run if m["event"] == "step")
        self.assertEqual(run.exit_code, 128 + signal.SIGTERM)
        self.assertEqual(self.saved(), self.last_step())

    def test_a_run_that_nobody_has_any_more_ends(self) -> None:
        run = ddpengine.train("run.ini", self.ENDLESS)
        next(m for m in run if m["event"] == "step")
        del run
        self.assertEqual(self.saved(), self.last_step())

    def interrupted(self, body: str, whole_group: bool) -> None:
        """A Python program gets SIGINT: it alone, as from a notebook, or all of its process group, as from a terminal."""
        script = f"import ddpengine\nfor m in ddpengine.train('run.ini', {self.ENDLESS!r}, nproc=2):\n    {body}\n"
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as python:
            assert python.stdout is not None and python.stderr is not None
            while '"step"' not in (line := python.stdout.readline().replace("'", '"')):
                self.assertTrue(line, "ended before a step")
            reader = threading.Thread(target=python.stdout.read)
            reader.start()
            (os.killpg if whole_group else os.kill)(python.pid, signal.SIGINT)
            error = python.stderr.read()
            reader.join()
        self.assertIn("KeyboardInterrupt", error)
        self.assertEqual(python.returncode, -signal.SIGINT)
        self.assertEqual(self.saved(), self.last_step())
        end = json.loads((self.dir / "out/metrics.jsonl").read_text().splitlines()[-1])
        self.assertEqual((end["event"], end["exit_code"]), ("end", 130))

    def test_ctrl_c_while_waiting_for_metrics(self) -> None:
        self.interrupted("print(m, flush=True)", whole_group=True)

    def test_ctrl_c_in_the_body_of_the_loop(self) -> None:
        self.interrupted("print(m, flush=True); import time; time.sleep(0 if m['event'] == 'start' else 600)", whole_group=False)


class Predict(Case):
    def setUp(self) -> None:
        super().setUp()
        list(ddpengine.train("run.ini", {"checkpoint.dir": "ckpt"}))

    def printed(self) -> list[list[float]]:
        """What the program says of x.npy, all digits."""
        out = subprocess.run([ddpengine.program(), "predict", "-c", "run.ini", "--checkpoint", "ckpt", "--json", "x.npy"], capture_output=True,
                             text=True, check=True).stdout
        return [json.loads(line)["values"] for line in out.splitlines()]

    def test_the_bits_of_the_program(self) -> None:
        with ddpengine.load("run.ini", "ckpt") as model:
            self.assertEqual(model.inputs, (ddpengine.Tensor("input", "float32", (FEATURES,)),))
            self.assertEqual([(t.dtype, t.shape) for t in model.outputs], [("float32", (2,))])
            found = [model.predict(self.x[i * FEATURES:(i + 1) * FEATURES]).tolist()[0] for i in range(SAMPLES)]
            whole = model.predict(memoryview(self.x).cast("B").cast("f", (SAMPLES, FEATURES)))
        wanted = [[struct.unpack("f", struct.pack("f", v))[0] for v in row] for row in self.printed()]
        self.assertEqual(len({tuple(row) for row in wanted}), SAMPLES)
        self.assertEqual(found, wanted)
        self.assertEqual((whole.shape, whole.format), ((SAMPLES, 2), "f"))
        self.assertTrue(all(abs(a - b) < 1e-5 for r, s in zip(whole.tolist(), wanted) for a, b in zip(r, s)))
        self.assertEqual(ddpengine.predict("run.ini", self.x, weights="ckpt").tobytes(), whole.tobytes())

    def test_arrays_that_it_takes(self) -> None:
        with ddpengine.load("run.ini", "ckpt") as model:
            wanted = model.predict(self.x).tobytes()
            self.assertEqual(model.predict(memoryview(self.x.tobytes()).cast("f")).tobytes(), wanted, "read-only bytes")
            twice = array.array("f", [v for x in self.x for v in (x, 0.0)])
            self.assertEqual(model.predict(memoryview(twice)[::2]).tobytes(), wanted, "every second number")
            try:
                import numpy
            except ImportError:
                return
            x = numpy.frombuffer(self.x, "float32").reshape(SAMPLES, FEATURES)
            self.assertEqual(model.predict(x).tobytes(), wanted)
            self.assertEqual(model.predict(numpy.asfortranarray(x)).tobytes(), wanted)
            self.assertEqual(numpy.asarray(model.predict(x)).shape, (SAMPLES, 2))

    def test_arrays_that_it_refuses(self) -> None:
        with ddpengine.load("run.ini", "ckpt") as model:
            for wrong, kind, part in (([1.0] * 6, TypeError, "list has no buffer"), (array.array("d", [0] * 6), TypeError, "astype"),
                                      (array.array("i", [0] * 6), TypeError, "float32"), (array.array("f", [0] * 7), ValueError, "multiple of 6"),
                                      (array.array("f"), ValueError, r"\(batch, 6\)"),
                                      (memoryview(bytes(48)).cast("f", (2, 3, 2)), ValueError, r"\(2, 3, 2\)")):
                with self.subTest(part), self.assertRaisesRegex(kind, part):
                    model.predict(wrong)
            with self.assertRaisesRegex(TypeError, "1 arrays"):
                model.predict(self.x, self.x)
        with self.assertRaisesRegex(ValueError, "closed"):
            model.predict(self.x)
        model.close()

    def test_errors_and_log(self) -> None:
        for weights, code in (("nowhere", 8), ("run.ini", 8)):
            with self.subTest(weights), self.assertRaises(ddpengine.Error) as caught:
                ddpengine.load("run.ini", weights)
            self.assertEqual(caught.exception.exit_code, code, caught.exception)
            self.assertIn(weights, caught.exception.line)
        with self.assertRaises(ddpengine.Error) as caught:
            ddpengine.load("run.ini", "ckpt", set={"model.plugin": "nowhere"}, log=lambda level, line: None)
        self.assertEqual(caught.exception.exit_code, 3)

    def test_threads_of_the_program(self) -> None:
        """Calls from several threads wait for each other."""
        with ddpengine.load("run.ini", "ckpt") as model:
            arrays = [array.array("f", [v * k for v in self.x]) for k in (1, 2, 3, 4)]
            wanted, found = [model.predict(x).tobytes() for x in arrays], [[], [], [], []]
            threads = [threading.Thread(target=lambda k=k: found[k].extend(model.predict(arrays[k]).tobytes() for _ in range(2000)))
                       for k in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        self.assertEqual([set(f) for f in found], [{w} for w in wanted])

    def test_beside_the_systems_libraries(self) -> None:
        """Its OpenSSL and the system's are in one process, in either order."""
        for order in ("import ssl; m = ddpengine.load('run.ini', 'ckpt')", "m = ddpengine.load('run.ini', 'ckpt'); import ssl"):
            script = f"import ddpengine, hashlib; {order}; ssl.create_default_context(); print(m.predict(bytearray(24 * 4) and memoryview(bytes(24)).cast('f')).shape)"
            done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
            self.assertEqual((done.stdout, done.stderr), ("(1, 2)\n", ""))


if __name__ == "__main__":
    unittest.main()
