"""ranks.jsonl, and the slowest rank wherever it is shown."""
import fcntl
import json
import os
import pathlib
import re
import signal
import statistics
import struct
import sys
import termios

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "watch"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import event_file  # noqa: E402
import harness  # noqa: E402
from flawed import compiled  # noqa: E402
from harness import Case  # noqa: E402

PARTS = ("data_ms", "compute_ms", "wait_ms", "update_ms")
WAYS = {"direct": {"group": {"backend": "shm"}}, "all_reduce": {"group": {"backend": "gloo-tcp"}},
        "zero": {"group": {"backend": "gloo-tcp"}, "ddp": {"zero": 1}}, "clip": {"group": {"backend": "shm"}, "optimizer": {"clip_norm": 0.2}}}


def lines(folder):
    rows = [json.loads(line) for line in (folder / "ranks.jsonl").read_text().splitlines()]
    return [r for r in rows if r["event"] == "start"], [r for r in rows if r["event"] == "ranks"]


def busy(rows, rank):
    """Of the whole run, ms a step; the first step warms up."""
    rows = [r for r in rows if r["step"] > r["steps"]]
    return sum(r["steps"] * (r["compute_ms"][rank] + r["data_ms"][rank] + r["update_ms"][rank]) for r in rows) / sum(r["steps"] for r in rows)


class Ranks(Case):
    def covers(self, rows, world, first, last):
        """Each step from `first` to `last` once, all of all ranks, and what a step consists of adds up."""
        at = first - 1
        for r in rows:
            self.equal(r["step"] - r["steps"], at, rows)
            at = r["step"]
            self.equal({len(r[k]) for k in (*PARTS, "step_ms", "checkpoint_ms")}, {world}, r)
            for rank in range(world):
                parts = sum(r[k][rank] for k in PARTS)
                self.check(abs(parts - r["step_ms"][rank]) <= 1e-4 * parts, r)
        self.equal(at, last, rows)

    def like_metrics(self, folder, rows):
        """Rank 0's figures are the means of its lines of steps."""
        steps = {m["step"]: m for m in self.metrics(folder, "step")}
        for r in rows:
            for key in ("step_ms", "data_ms", "wait_ms"):
                want = statistics.mean(steps[s][key] for s in range(r["step"] - r["steps"] + 1, r["step"] + 1))
                self.check(abs(r[key][0] - want) <= 1e-5 * want + 2e-6, f"{key} at {r['step']}: {r[key][0]}, metrics.jsonl has {want}")

    def test_means_of_the_steps(self):
        for name, way in WAYS.items():
            r = self.train(way, name=name)
            starts, rows = lines(r.dir)
            self.equal([(s["world_size"], s["ranks"], s["generation"], len(s["hosts"])) for s in starts], [(2, [0, 1], 0, 2)])
            self.covers(rows, 2, 1, 40)
            self.like_metrics(r.dir, rows)
            self.check(all(r["update_ms"][k] > 0 for r in rows for k in (0, 1)), rows)
            self.check(len(rows) < 20, rows)

    def test_a_run_that_goes_on_appends(self):
        saves = {"checkpoint": {"dir": self.dir / "ck", "every": 15, "async": "no"}}
        r = self.train(saves)
        _, rows = lines(r.dir)
        self.covers(rows, 2, 1, 40)
        # of each save all ranks were held up: those of 15 and 30, and the last one, which comes with the last step
        self.check(all(sum(x["steps"] * x["checkpoint_ms"][k] for x in rows) > 0 for k in (0, 1)), rows)
        self.check(rows[-1]["checkpoint_ms"][0] > 0, rows)
        file = r.dir / "ranks.jsonl"
        file.write_text(file.read_text() + '{"event": "ranks", "step"')
        self.train(saves, {"train": {"epochs": 3}})
        starts, rows = lines(r.dir)
        self.equal(len(starts), 2)
        self.covers(rows, 2, 1, 60)
        self.train({"train": {"epochs": 1}})
        starts, rows = lines(r.dir)
        self.equal(len(starts), 1)
        self.covers(rows, 2, 1, 20)

    def test_where_there_is_none(self):
        for name, layers in {"one": ({}, 1), "off": ({"output": {"ranks": "no"}}, 2),
                             "replicas": ({"train": {"parallel": "dp", "device": "cpu:0, cpu:1"}}, 0)}.items():
            r = self.train(layers[0], nproc=layers[1], name=name)
            self.check(not (r.dir / "ranks.jsonl").exists(), name)

    def test_a_slow_rank_is_named(self):
        """Most of a step is a pause, of rank 2 one that is far longer than what a busy machine adds to the others'."""
        device = compiled(self, "slow_device.c", "device_slow.so", f'-DREAL_DEVICE="{harness.BUILD}/.libs/device_cpu.so"')
        port, out, prom = harness.free_port(), self.dir / "out", self.dir / "run.prom"
        group = {"group": {"init_method": f"tcp://127.0.0.1:{port}", "world_size": 4},
                 "train": {"device": device, "max_steps": 32, "batch_size": 4, "epochs": 100}}
        p = [self.start("-c", self.ini(f"{rank}.ini", group, {"group": {"rank": rank}},
                                       {"output": {"dir": out, "prometheus": prom, "tensorboard": "yes"}} if rank == 0 else {}),
                        env={"SLOW_US": "120000" if rank == 2 else "20000"}) for rank in range(4)]
        results = [self.finish(q) for q in p]
        self.equal([r.code for r in results], [0] * 4, results)
        starts, rows = lines(out)
        self.covers(rows, 4, 1, 32)
        self.like_metrics(out, rows)
        times = [busy(rows, rank) for rank in range(4)]
        self.equal(max(range(4), key=times.__getitem__), 2, times)
        # so it is for the others: they wait for it
        waits = [sum(r["steps"] * r["wait_ms"][k] for r in rows) for k in range(4)]
        self.equal(min(range(4), key=waits.__getitem__), 2, waits)
        said = re.search(r"slowest rank (\d) on host \S+: ([\d.]+) ms/step without waiting, (\d+) % more than the others", results[0].err)
        self.check(said, results[0])
        excess = times[2] / statistics.median(times[:2] + times[3:]) - 1
        self.equal(said.group(1), "2")
        self.check(abs(float(said.group(2)) - times[2]) < 0.01 and abs(float(said.group(3)) - 100 * excess) <= 0.6, f"{said} {times}")
        values = dict(re.findall(r"^(ddpengine_slowest\w+) (\S+)$", prom.read_text(), re.M))
        self.equal(values["ddpengine_slowest_rank"], "2")
        self.check(0.05 < float(values["ddpengine_slowest_rank_excess_ratio"]) < 20, values)
        scalars = event_file.read(out)[0]
        self.equal(scalars["ranks/slowest"][32], 2.0)
        for r in rows:
            want = r["compute_ms"][2] + r["data_ms"][2] + r["update_ms"][2]
            self.check(abs(scalars["ranks/busy_ms_2"][r["step"]] - want) <= 1e-4 * want, r)

    def test_the_live_line_names_it(self):
        """On a terminal, without colours, where the line has room; a tenth is shown, and what is within 5 % is not."""
        device = compiled(self, "slow_device.c", "device_slow.so", f'-DREAL_DEVICE="{harness.BUILD}/.libs/device_cpu.so"')
        port = harness.free_port()
        group = {"group": {"init_method": f"tcp://127.0.0.1:{port}", "world_size": 2},
                 "train": {"device": device, "max_steps": 60, "batch_size": 4, "epochs": 100}}
        other = self.start("-c", self.ini("1.ini", group, {"group": {"rank": 1}}), env={"SLOW_US": "30000"})
        master, slave = harness.open_terminal()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 200, 0, 0))
        p = self.spawn([harness.ENGINE, "-c", self.ini("0.ini", group, {"group": {"rank": 0}})], stdout=slave, stderr=slave,
                       env={"SLOW_US": "15000", "NO_COLOR": "1", "TERM": "xterm"})
        os.close(slave)
        text = harness.read_terminal(master)
        self.equal((p.wait(), self.finish(other).code), (0, 0), text)
        self.check(re.search(r"step \d+/60 .*\(data \d.*, wait \d.*\)  rank 1 \+\d+ %  ETA \d", text), text[-1500:])
        self.check(re.search(r"slowest rank 1 on host", text) and not re.search("\x1b\\[[0-9;]*m", text), text[-1500:])

    def test_what_to_do_next(self):
        """The commands at the end of a run that was stopped are taken as they stand there."""
        plan = {"train": {"epochs": 100000}, "checkpoint": {"dir": self.dir / "my saves", "every": 50}, "eval": {"plugin": "synthetic"},
                "eval.synthetic": {"samples": 160, "shape": 12, "classes": 4, "seed": 1}, "output": {"dir": self.dir / "out", "log_every": 10}}
        p = self.start("-c", self.ini("run.ini", plan), "--nproc", 2)
        self.trained_a_while(p)
        p.send_signal(signal.SIGINT)
        r = self.finish(p)
        self.equal(r.code, 130, r)
        commands = dict(re.findall(r": (evaluate|resume) +ddpengine (.*)$", r.err, re.M))
        self.equal(sorted(commands), ["evaluate", "resume"], r)
        step = int(re.search(r"step-(\d+)", commands["evaluate"])[1])
        r = self.finish(self.spawn(["sh", "-c", f"exec {harness.ENGINE} {commands['evaluate']}"]))
        self.check(r.code == 0 and f"step {step} of" in r.out, r)
        more = f"--set train.max_steps={step + 5}"
        r = self.finish(self.spawn(["sh", "-c", f"exec {harness.ENGINE} {commands['resume']} {more}"]))
        self.equal(r.code, 0, r)
        self.equal(self.metrics(self.dir / "out", "step")[-1]["step"], step + 5)
        self.check("evaluate " in r.err and "resume " not in r.err, r)


if __name__ == "__main__":
    sys.exit(harness.main(Ranks))
