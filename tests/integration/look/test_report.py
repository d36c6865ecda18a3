"""`ddpengine report`: its numbers against metrics.jsonl and ranks.jsonl, runs of every state, hostile names and files, size."""
import html.parser
import json
import os
import pathlib
import random
import re
import resource
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "watch"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import harness  # noqa: E402
import see_report  # noqa: E402
from flawed import compiled  # noqa: E402
from harness import ENGINE, Case, seldom, until  # noqa: E402

EVALUATED = {"eval": {"plugin": "synthetic"}, "eval.synthetic": {"samples": 160, "shape": 12, "classes": 4, "seed": 1}}
TIMES = ["step_ms", "data_ms", "compute_ms", "wait_ms", "update_ms", "checkpoint_ms"]


class Page(html.parser.HTMLParser):
    """What a browser makes of the file: elements, and the data in its script element."""

    def __init__(self, path):
        super().__init__()
        self.text, self.tags, self.json, self.inside = path.read_text(), [], "", False
        self.feed(self.text)
        self.data = json.loads(self.json)
        self.runs = {r["name"]: r for r in self.data["runs"]}

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag == "script" and ("id", "data") in attrs

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.json += data


class Report(Case):
    def page(self, *args, expect=0):
        path = self.dir / "report.html"
        r = self.run("report", *args, "-o", path)
        self.equal(r.code, expect, r)
        return Page(path)

    def write(self, name, lines, file="metrics.jsonl"):
        folder = self.dir / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("".join(json.dumps(x) + "\n" for x in lines))
        return folder

    def made_up(self, steps, seed=1):
        rng = random.Random(seed)
        yield {"event": "start", "time": 1793601234.017, "version": "0.1.0", "world_size": 4, "backend": "gloo-tcp", "device": "cpu",
               "precision": "f32", "model": "mlp", "parameters": 4148, "step": 0, "planned_steps": steps, "generation": 0}
        for k in range(1, steps + 1):
            yield {"event": "step", "step": k, "epoch": 1 + k // 1000, "loss": round(2 / k + rng.random(), 8), "lr": round(0.1 * (1 - k / steps), 9),
                   "grad_norm": round(rng.random(), 8), "step_ms": round(12 + rng.random(), 4), "data_ms": round(rng.random(), 5),
                   "wait_ms": round(rng.random(), 5), "samples_per_s": 10000 + k % 7}
        yield {"event": "end", "time": 1793609999.5, "steps": steps, "final_loss": 0.5, "exit_code": 0}

    def times(self, intervals, each=20, ranks=4, slow=2, by=1.2):
        rng = random.Random(2)
        yield {"event": "start", "time": 1.5, "world_size": ranks, "hosts": [f"node{r // 2}" for r in range(ranks)], "generation": 0}
        for k in range(1, intervals + 1):
            own = {"compute_ms": [10 * (by if r == slow else 1) + rng.random() * 0.1 for r in range(ranks)],
                   "data_ms": [rng.random() * 0.1 for _ in range(ranks)], "update_ms": [1 + rng.random() * 0.1 for _ in range(ranks)]}
            work = [sum(v[r] for v in own.values()) for r in range(ranks)]
            own.update(wait_ms=[max(work) - w + 0.2 for w in work], step_ms=[max(work) + 0.3] * ranks, checkpoint_ms=[0.0] * ranks)
            yield {"event": "ranks", "step": k * each, "steps": each, "generation": 0, **{f: [round(x, 5) for x in v] for f, v in own.items()}}

    # ---- numbers ------------------------------------------------------------------------------------------------
    def same_numbers(self, run, rows, whole=True):
        """Every point of the page is a number of metrics.jsonl at that step; `whole`: and all of them are there."""
        for kind, group in (("step", "series"), ("eval", "evals")):
            want = {}
            for r in rows:
                if r["event"] == kind:
                    for field, v in r.items():
                        if isinstance(v, (int, float)) and field not in ("step", "epoch", "time", "samples"):
                            want.setdefault(field, {})[r["step"]] = v
            self.equal(sorted(run[group]), sorted(want))
            for field, points in want.items():
                have = dict(zip(run[group][field]["step"], run[group][field]["value"]))
                wrong = {s: (v, points.get(s)) for s, v in have.items() if points.get(s) != v}
                self.equal(wrong, {}, field)
                if whole:
                    self.equal(len(have), len(points), field)

    def test_numbers_of_a_run(self):
        r = self.train(EVALUATED, {"optimizer": {"clip_norm": 1}})
        page = self.page(r.dir)
        run = page.runs[r.dir.name]
        self.same_numbers(run, self.metrics(r.dir))
        self.equal(run["state"]["text"], "done")
        self.equal(run["state"]["loss"], r.summary["final_loss"])
        self.equal(run["summary"]["median_step_ms"], r.summary["median_step_ms"])
        self.check(["optimizer", "clip_norm", "1"] in run["settings"], run["settings"])
        self.equal([(p["name"], p["shape"], p["trained"]) for p in run["run"]["parameters"]],
                   [("fc1.weight", [24, 12], True), ("fc1.bias", [24], True), ("fc2.weight", [17, 24], True), ("fc2.bias", [17], True),
                    ("fc3.weight", [4, 17], True), ("fc3.bias", [4], True)])
        self.equal(run["run"]["machine"]["host"], os.uname().nodename)
        # nothing comes from elsewhere
        for tag, attrs in page.tags:
            self.check(tag not in ("link", "img", "iframe") and "src" not in attrs and "href" not in attrs or attrs.get("href") == "#main", (tag, attrs))
        self.check("@import" not in page.text and "fetch(" not in page.text, "the page asks for more")
        self.equal(re.findall(r"https?://[^\"']*", page.text), ["http://www.w3.org/2000/svg"])
        # without -o it is beside the files of the run
        self.equal(self.run("report", r.dir).code, 0)
        self.equal(Page(r.dir / "report.html").runs[r.dir.name]["series"], run["series"])

    def test_several_runs_and_their_settings(self):
        ini = self.ini("run.ini", EVALUATED)
        for lr in ("0.05", "0.1"):
            self.run("-c", ini, "--set", f"output.dir=runs/lr={lr}", "--set", f"optimizer.lr={lr}")
        page = self.page("runs")
        self.equal([r["name"] for r in page.data["runs"]], ["lr=0.05", "lr=0.1"])
        a, b = ({(s, k): v for s, k, v in r["settings"]} for r in page.data["runs"])
        self.equal({k for k in a if a[k] != b[k]}, {("optimizer", "lr"), ("output", "dir")})
        for r in page.data["runs"]:
            self.same_numbers(r, self.metrics(self.dir / r["dir"]))
        # two of one name have their folders' paths
        self.write("other/lr=0.1", self.made_up(3))
        self.equal([r["name"] for r in self.page("runs/lr=0.1", "other/lr=0.1").data["runs"]], ["runs/lr=0.1", "other/lr=0.1"])

    def test_a_step_that_was_made_again_counts_once(self):
        rows = list(self.made_up(50))[:-1]
        rows += [{"event": "eval", "time": 1.0, "step": 50, "epoch": 1, "eval_loss": 0.7}, {"event": "rollback", "time": 2.0, "step": 30, "epoch": 1}]
        rows += [{**r, "loss": 9.0} for r in rows if r["event"] == "step" and 31 <= r["step"] <= 40]
        run = self.page(self.write("again", rows)).runs["again"]
        loss = run["series"]["loss"]
        self.equal(loss["step"], list(range(1, 41)))
        self.equal(loss["value"][29:], [rows[30]["loss"]] + [9.0] * 10)
        self.check("eval_loss" not in run["evals"], "an evaluation of steps that were taken back")

    def test_times_of_ranks(self):
        folder = self.write("slow", self.made_up(400))
        lines = list(self.times(20))
        self.write("slow", lines, "ranks.jsonl")
        ranks = self.page(folder).runs["slow"]["ranks"]
        rows = lines[1:]
        self.equal(ranks["step"], [r["step"] for r in rows])
        kept = rows[1:]  # without the first step
        for f in TIMES:
            self.equal(ranks[f], [[r[f][rank] for r in rows] for rank in range(4)], f)
            for rank in range(4):
                mean = sum(r[f][rank] * r["steps"] for r in kept) / sum(r["steps"] for r in kept)
                self.check(abs(ranks["totals"][rank][f] - mean) <= 1e-8 * (1 + mean), (f, rank))
        work = [sum(ranks["totals"][r][f] for f in ("compute_ms", "data_ms", "update_ms")) for r in range(4)]
        others = sorted(work[:2] + work[3:])[1]
        self.equal(ranks["slowest"], 2)
        self.check(ranks["sentence"].startswith("Rank 2 on node1 is the slowest: "), ranks["sentence"])
        self.check(f"{work[2] - others:.3g} ms ({100 * (work[2] / others - 1):.0f} %)" in ranks["sentence"], ranks["sentence"])
        self.check("most of it computing" in ranks["sentence"] and "100 %" in ranks["sentence"], ranks["sentence"])
        # the places of the arrays are those of other ranks: 1 is missing
        lines[0].update(ranks=[0, 2, 3], hosts=["a", "b", "c"])
        self.write("missing", self.made_up(400))
        self.write("missing", [lines[0]] + [{**r, **{f: r[f][1:] for f in TIMES}} for r in rows], "ranks.jsonl")
        less = self.page(self.dir / "missing").runs["missing"]["ranks"]
        self.equal((less["hosts"], less["compute_ms"][1]), (["a", None, "b", "c"], [None] * 20))
        self.equal(less["compute_ms"][2], [r["compute_ms"][2] for r in rows])
        self.check(less["sentence"].startswith("Rank 2 on b is the slowest"), less["sentence"])
        # nobody is slow
        self.write("even", self.made_up(400))
        self.write("even", self.times(20, by=1.0), "ranks.jsonl")
        self.check(self.page(self.dir / "even").runs["even"]["ranks"]["sentence"].startswith("No rank is much slower"))
        # a rank whose figures did not arrive, and half a line
        lines = list(self.times(20))
        rows = lines[1:]
        lines[3]["compute_ms"][1] = None
        (folder / "ranks.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines) + json.dumps(lines[-1])[:60])
        cut = self.page(folder).runs["slow"]["ranks"]
        self.equal([cut["compute_ms"][1][k] for k in range(4)], [rows[0]["compute_ms"][1], rows[1]["compute_ms"][1], None, rows[3]["compute_ms"][1]])
        self.equal(cut["slowest"], 2)
        # no file: all else is there
        (folder / "ranks.jsonl").unlink()
        self.equal(self.page(folder).runs["slow"]["ranks"], None)

    def test_a_real_run_with_a_slow_rank(self):
        """Most of a step is a pause, of rank 2 one that is a fifth longer, as in test_ranks.py."""
        device = compiled(self, "slow_device.c", "device_slow.so", f'-DREAL_DEVICE="{harness.BUILD}/.libs/device_cpu.so"')
        port, out = harness.free_port(), self.dir / "out"
        group = {"group": {"init_method": f"tcp://127.0.0.1:{port}", "world_size": 4},
                 "train": {"device": device, "max_steps": 24, "batch_size": 4, "epochs": 100}}
        started = [self.start("-c", self.ini(f"{rank}.ini", group, {"group": {"rank": rank}}, {"output": {"dir": out}} if rank == 0 else {}),
                              env={"SLOW_US": "120000" if rank == 2 else "100000"}) for rank in range(4)]
        results = [self.finish(p) for p in started]
        self.equal([r.code for r in results], [0] * 4, results)
        run = self.page(out).runs["out"]
        self.same_numbers(run, self.metrics(out))
        rows = [r for r in map(json.loads, (out / "ranks.jsonl").read_text().splitlines()) if r["event"] == "ranks"]
        self.equal({f: run["ranks"][f] for f in TIMES}, {f: [[r[f][rank] for r in rows] for rank in range(4)] for f in TIMES})
        says = re.match(r"Rank 2 on \S+ is the slowest: .* \((\d+) %\)", run["ranks"]["sentence"])
        self.check(says, run["ranks"]["sentence"])
        self.check(f", {says[1]} % more than the others" in results[0].err, f"{results[0].err}\n{says[0]}")

    # ---- runs that have not ended, or not well ---------------------------------------------------------------
    def test_a_run_that_was_killed(self):
        out = self.dir / "out"
        p = self.start("-c", self.ini("run.ini", {"output": {"dir": out, "progress": "off"}, "train": {"epochs": 100000}}))
        until(lambda: p.poll() is not None or (out / "metrics.jsonl").exists() and (out / "metrics.jsonl").stat().st_size > 50000, "no steps")
        self.equal(self.page(out).runs["out"]["state"]["text"], "going on")
        p.send_signal(signal.SIGKILL)
        self.finish(p)
        text = (out / "metrics.jsonl").read_text()
        (out / "metrics.jsonl").write_text(text + '{"event": "step", "step": 7')
        rows = [json.loads(x) for x in text.splitlines()]
        run = self.page(out).runs["out"]
        self.same_numbers(run, rows, whole=len(rows) <= 2000)
        self.equal(run["summary"], None)

    def test_follow(self):
        page, lines = self.dir / "page.html", list(self.made_up(60))
        folder = self.write("live", lines[:30])
        f = self.start("report", "live", "-o", page, "--follow")
        loss = lambda: Page(page).runs["live"]["series"]["loss"]["step"][-1] if page.exists() else 0
        until(lambda: f.poll() is not None or loss() == 29, "no page")
        self.check(Page(page).data["follow"] and Page(page).runs["live"]["state"]["text"] == "going on")
        self.write("live", lines[:-1])
        until(lambda: f.poll() is not None or loss() == 60, "written once")
        self.equal(f.poll(), None, "ended early")
        self.write("live", lines)
        self.equal(self.finish(f).code, 0)  # ends with the run
        last = Page(page)
        self.equal((last.data["follow"], last.runs["live"]["state"]["text"]), (False, "done"))
        # ends by a signal: what it leaves does not load itself again
        self.write("live", lines[:40])
        page.unlink()
        f = self.start("report", folder, "-o", page, "--follow")
        until(lambda: f.poll() is not None or loss() == 39, "no page")
        self.equal(f.poll(), None, "ended early")
        f.send_signal(signal.SIGINT)
        self.equal(self.finish(f).code, 0)
        self.equal(Page(page).data["follow"], False)
        self.equal([x.name for x in self.dir.glob("page.html*")], ["page.html"])

    @seldom
    def test_follow_goes_on(self):
        """A run that has written nothing lately has no end yet, and a page that cannot be written is tried again."""
        page, lines = self.dir / "pages/page.html", list(self.made_up(60))
        page.parent.mkdir()
        folder = self.write("live", lines[:30])
        long_ago = time.time() - 100
        os.utime(folder / "metrics.jsonl", (long_ago, long_ago))
        f = self.start("report", "live", "-o", page, "--follow")
        until(lambda: f.poll() is not None or page.exists(), "no page")
        state = Page(page).runs["live"]["state"]
        self.check(Page(page).data["follow"] and state["text"] == "cut off" and 100 <= state["silent_s"] < 160, state)
        os.rename(page.parent, self.dir / "gone")
        self.write("live", lines[:40])
        said = "-"
        while said and "tried again" not in said:
            said = f.stderr.readline()
        self.check("pages/page.html: cannot create a file beside it: No such file or directory; it is tried again" in said, said)
        time.sleep(2.5)  # said once
        os.rename(self.dir / "gone", page.parent)
        until(lambda: f.poll() is not None or Page(page).runs["live"]["series"]["loss"]["step"][-1] == 39, "not tried again")
        self.write("live", lines)
        r = self.finish(f)
        self.equal((r.code, r.err.count("tried again"), r.err.count("is written again")), (0, 0, 1), r)
        state = Page(page).runs["live"]["state"]
        self.equal((state["text"], state["silent_s"]), ("done", None))

    # ---- strangers' files ---------------------------------------------------------------------------------------
    def test_names_that_would_be_markup(self):
        evil = '</script><b onclick=x>&amp;<!--'
        rows = list(self.made_up(5))
        rows[0].update(model=evil, backend="\u2028\x01" + evil)
        rows.insert(3, {"event": "warning", "time": 5, "text": evil, evil: 1})
        rows[2]["<i>"] = 3.5
        folder = self.write("a" + evil.replace("/", ""), rows)
        (folder / "settings.ini").write_text(f"[model]\nplugin = {evil}\n")
        clean = self.page(self.write("clean", self.made_up(5)))
        page = self.page(folder)
        self.equal([t for t, _ in page.tags], [t for t, _ in clean.tags])
        run = page.data["runs"][0]
        self.equal((run["name"], run["start"]["model"], run["settings"]), (folder.name, evil, [["model", "plugin", evil]]))
        self.equal(run["series"]["<i>"], {"step": [2], "value": [3.5]})
        # a name that is no text at all
        odd = bytes(self.dir) + b"/\xff\xfe"
        folder.rename(odd.decode(errors="surrogateescape"))
        r = self.run("report", odd.decode(errors="surrogateescape"), "-o", self.dir / "odd.html")
        self.equal(r.code, 0, r)
        Page(self.dir / "odd.html")

    def test_lines_that_no_run_has_written(self):
        odd = [[], 1, "x", None, {}, {"event": 7}, {"event": "step"}, {"event": "step", "step": -1, "loss": 1}, {"event": "step", "step": 2.5, "loss": 1},
               {"event": "step", "step": 2**62, "loss": 1}, {"event": "step", "step": 3, "loss": "x", "lr": None, "step_ms": []}, {"event": "eval"},
               {"event": "step", "step": 4, **{f"f{i}": i for i in range(200)}}, {"event": "step", "step": 5, "y" * 300: 1}, {"event": "start", "hosts": 3},
               {"event": "ranks", "step": 5, "steps": 9, "step_ms": [1, "x", None], "wait_ms": 4}, {"event": "ranks", "step": 1, "steps": 1},
               {"event": "ranks", "step": 2**62, "steps": 1, "compute_ms": [1e308, 1e308], "data_ms": [1e308, -1e308], "update_ms": [1e308, 0]},
               {"event": "ranks", "step": 6, "steps": 2**62, "compute_ms": [1] * 5000}, {"event": "end", "exit_code": -5}]
        for file in ("metrics.jsonl", "ranks.jsonl", "both"):
            folder = self.write(f"odd-{file}", odd if file != "ranks.jsonl" else self.made_up(3))
            if file != "metrics.jsonl":
                self.write(folder.name, odd, "ranks.jsonl")
            with open(folder / "metrics.jsonl", "ab") as f:
                f.write(b"\xff\x00{\n" + b"[" * 5000 + b"\n" + b'{"event": "step", "step": 7, "loss": 1e999}\n{"event": "step", "step": 8, "loss": 0.25}')
            for name, text in (("settings.ini", "[\n"), ("summary.json", "[1"), ("profile.json", "3"), ("trace-rank0.json", '{"traceEvents": [1, {"ph": "X", "ts": 1, "dur": -1, "args": {"step": 9223372036854775807}}]}'),
                               ("run.json", '{"parameters": [3, {"name": 1, "shape": [-1, "x"]}], "machine": 4}')):
                (folder / name).write_text(text)
            run = self.page(folder).data["runs"][0]
            self.equal(run["series"]["loss"]["value"][-1], 0.25)
            self.equal(self.run("report", folder, "--text").code, 0)

    def test_pipes_and_folders_in_place_of_files(self):
        """Nobody writes to the pipes: to open one for reading would wait for ever."""
        names = ["ranks.jsonl", "settings.ini", "summary.json", "profile.json", "run.json", "trace-rank0.json"]
        for make in (os.mkfifo, os.mkdir):
            folder = self.write(make.__name__, self.made_up(5))
            for name in names:
                make(folder / name)
            page = self.dir / "page.html"
            r = self.run("report", folder, "-o", page)
            self.equal(r.code, 0, r)
            self.check("ranks.jsonl" in r.err and "no file" in r.err, r.err)
            run = Page(page).runs[folder.name]
            self.equal((run["series"]["loss"]["step"], run["ranks"], run["summary"]), ([1, 2, 3, 4, 5], None, None))
            self.equal(self.run("report", folder, "--text").code, 0)
            self.equal(self.run("runs", folder).code, 0)

    def test_files_that_cannot_be_read(self):
        """/proc/self/mem is a regular file of which the first read fails."""
        self.write("runs/a", self.made_up(5))
        self.write("runs/b", self.made_up(6))
        (self.dir / "runs/a/ranks.jsonl").symlink_to("/proc/self/mem")
        self.equal(list(self.page("runs").runs), ["a", "b"])
        r = self.run("report", "runs", "--text")
        self.check(r.code == 0 and "runs/a/ranks.jsonl: Input/output error; the report has no times of ranks of runs/a" in r.err, r)
        (self.dir / "runs/b/metrics.jsonl").unlink()
        (self.dir / "runs/b/metrics.jsonl").symlink_to("/proc/self/mem")
        for args in (["runs"], ["runs/a", "runs/b"]):
            self.equal(list(self.page(*args).runs), ["a"])
            r = self.run("report", *args, "--text")
            self.check(r.code == 0 and "runs/b/metrics.jsonl: Input/output error; this run is left out" in r.err, r)
        self.fails(self.run("report", "runs/b", "--text"), 2, "no run can be read")

    def test_a_line_without_end(self):
        folder = self.write("run", self.made_up(5))
        with open(folder / "ranks.jsonl", "w") as f:
            f.write('{"event": "' + "x" * (40 << 20) + '"}\n')
            f.writelines(json.dumps(x) + "\n" for x in self.times(20))
        self.equal(self.page(folder).runs["run"]["ranks"]["intervals"], 20)

    def test_a_table_of_huge_losses(self):
        self.write("run", [{"event": "step", "step": 1, "loss": 1.7e308}, {"event": "eval", "step": 1, "eval_loss": 1234567.0}])
        r = self.run("runs", "run")
        self.check(r.code == 0 and " 1.7e+308 " in r.out and " loss 1.235e+06 at 1 " in r.out and max(map(len, r.out.splitlines())) < 130, r)

    def test_what_it_refuses(self):
        (self.dir / "empty").mkdir()
        self.write("run", self.made_up(3))
        self.fails(self.run("report"), 2, "no RUN")
        self.fails(self.run("report", "none"), 2, "cannot read the folder none")
        self.fails(self.run("report", "run", "empty"), 2, "no run in empty", "metrics.jsonl", "ddpengine runs")
        self.fails(self.run("report", "run", "--text", "-o", "x"), 2, "--text prints here", "--output")
        self.fails(self.run("report", "run", "-o", "none/x.html"), 2, "no folder none for none/x.html", "make it")
        self.fails(self.run("report", "run", "-o", ""), 2, "--output is empty")
        self.fails(self.run("report", "run", "-o", "run"), 2, "run is a folder; name a file with -o, such as run/report.html")
        self.fails(self.run("report", "run/metrics.jsonl"), 2, "run/metrics.jsonl is no folder; name the [output] dir")
        self.fails(self.run("report", ""), 2, "a RUN is empty")
        (self.dir / "pipe").mkdir()
        os.mkfifo(self.dir / "pipe/x.html")
        self.fails(self.run("report", "run", "-o", "pipe/x.html"), 2, "pipe/x.html is no regular file")
        # what the system refuses later is no mistake of the command line
        few = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, 1 << 14))
        self.fails(self.finish(self.spawn([ENGINE, "report", "run"], preexec_fn=few)), 1, "run/report.html: cannot write: File too large")
        self.equal(sorted(p.name for p in (self.dir / "run").iterdir()), ["metrics.jsonl"])
        for k in range(65):
            self.write(f"many/{k}", self.made_up(1))
        self.fails(self.run("report", "many"), 2, "65 runs", "64")

    # ---- size ------------------------------------------------------------------------------------------------------
    @harness.long_case
    def test_a_hundred_thousand_steps(self):
        rows = list(self.made_up(100000))
        folder = self.write("long", rows)
        self.write("long", self.times(20000, each=5, ranks=8), "ranks.jsonl")
        page = self.page(folder)
        self.check(len(page.text) <= 2_000_000, len(page.text))
        run = page.runs["long"]
        self.same_numbers(run, rows, whole=False)
        loss = run["series"]["loss"]
        steps = [r for r in rows if r["event"] == "step"]
        self.equal((loss["step"][0], loss["step"][-1], loss["count"]), (1, 100000, 100000))
        self.equal((min(loss["value"]), max(loss["value"])), (min(r["loss"] for r in steps), max(r["loss"] for r in steps)))
        n = len(loss["mean"])
        for k in (0, n // 2, n - 1):
            part = [r["loss"] for r in steps[100000 * k // n:100000 * (k + 1) // n]]
            self.check(abs(loss["mean"][k] - sum(part) / len(part)) < 1e-8, k)
            inside = [v for s, v in zip(loss["step"], loss["value"]) if 100000 * k // n < s <= 100000 * (k + 1) // n]
            self.check(min(part) in inside and max(part) in inside, k)
        # as many runs as it has room for, of which each is thinned more
        for k in range(64):
            self.write(f"many/{k}", steps[:1000])
        self.check(len(self.page("many").text) <= 2_000_000, len(self.page("many").text))

    @seldom
    def test_ranks_of_a_long_run(self):
        """Of many lines neighbours are merged; means and shares are those of all lines, and memory does not grow with them."""
        lines = list(self.times(5000, ranks=8))
        lines[1000]["compute_ms"] = [None, 900.0] + lines[1000]["compute_ms"][2:]
        lines[7]["wait_ms"] = [1.0] * 4000  # more than there are ranks
        self.write("run", self.made_up(5))
        self.write("run", lines, "ranks.jsonl")
        ranks = self.page("run").runs["run"]["ranks"]
        self.equal((ranks["ranks"], ranks["intervals"], len(ranks["step"]), sum(ranks["steps"])), (8, 5000, 400, 100000))
        rows = lines[2:]  # the first one is left out
        for f in ("compute_ms", "update_ms"):
            for k in range(8):
                own = [r[f][k] for r in rows if r[f][k] is not None]
                self.check(abs(ranks["totals"][k][f] / (sum(own) / len(own)) - 1) < 1e-8, (f, k))
        self.equal([t["slowest_steps"] for t in ranks["totals"]], [0, 20] + [4998 * 20] + [0] * 5)
        self.equal([t["steps"] for t in ranks["totals"]], [4998 * 20] + [4999 * 20] * 7)
        # half of it is made again
        again = [{**r, "compute_ms": [1.0] * 8} for r in lines[2501:]]
        self.write("run", lines + again, "ranks.jsonl")
        ranks = self.page("run").runs["run"]["ranks"]
        self.check(ranks["step"][-1] == 100000 and ranks["step"] == sorted(ranks["step"]) and 99000 <= sum(ranks["steps"]) <= 100000, ranks["steps"])
        self.check(set(ranks["compute_ms"][2][250:]) == {1} and min(ranks["compute_ms"][2][:190]) > 9, ranks["compute_ms"][2])

    @seldom
    def test_ranks_in_little_memory(self):
        if harness.SANITIZED:
            raise harness.Skip("a sanitizer needs more memory")
        self.write("run", self.made_up(5))
        with open(self.dir / "run/ranks.jsonl", "w") as f:
            times = json.dumps({"steps": 1, "generation": 0, **{t: [1] * 4096 for t in TIMES[:3]}}, separators=(",", ":"))[1:]
            f.writelines(f'{{"event":"ranks","step":{k},{times}\n' for k in range(1, 801))
        p = self.spawn(["prlimit", f"--as={160 << 20}", harness.ENGINE, "report", "run", "--text"])
        r = self.finish(p)
        self.equal(r.code, 0, r)
        self.check("out of memory" not in r.err, r)

    def test_traces_of_many_ranks(self):
        """The last ten whole steps that there is room for, of files that are read one after the other."""
        def span(step, bucket, ts):
            return {"ph": "X", "cat": ["wait", "reduce"][bucket % 2], "name": "x", "ts": ts, "dur": 1.5, "tid": 1, "args": {"step": step, "bucket": bucket, "bytes": 8}}

        folder = self.write("run", self.made_up(5))
        for rank in (0, 1, 7):
            spans = [span(step, b, 1000 * step + 10 * b + rank) for step in range(1, 41) for b in range(20)]
            (folder / f"trace-rank{rank}.json").write_text(json.dumps({"traceEvents": [{"ph": "M"}, *spans]}))
        trace = self.page(folder).runs["run"]["trace"]
        self.equal((trace["names"], [k["rank"] for k in trace["ranks"]]), (["wait", "reduce"], [0, 1, 7]))
        for k in trace["ranks"]:
            self.equal(k["spans"], [[b % 2, b, 8, step, 1, 1000 * (step - 31) + 10 * b + k["rank"], 1.5] for step in range(31, 41) for b in range(20)])

    # ---- the terminal, the browser -----------------------------------------------------------------------------
    def test_text(self):
        self.write("runs/a", self.made_up(300))
        self.write("runs/a", self.times(15), "ranks.jsonl")
        r = self.run("report", "runs/a", "--text", env={"LC_ALL": "C.UTF-8"})
        self.equal((r.code, r.err), (0, ""), r)
        loss = [x["loss"] for x in self.made_up(300) if x["event"] == "step"]
        self.check(f"last {loss[-1]:.6g} at 300, least {min(loss):.6g} at {loss.index(min(loss)) + 1}" in r.out, r.out)
        self.check("Rank 2 on node1 is the slowest" in r.out and max(map(len, r.out.splitlines()[2:])) <= 100, r.out)
        dots = [c for c in r.out if "\u2801" <= c <= "\u28ff"]
        self.check(len(dots) > 70 and "\033" not in r.out, r.out)
        # plain characters, a letter for each run
        self.write("runs/b", self.made_up(200, seed=5))
        r = self.run("report", "runs", "--text", env={"LC_ALL": "C"})
        self.check(r.out.isascii() and re.search(r"^  a  a  last", r.out, re.M) and re.search(r"\|.*b", r.out), r.out)

    def test_text_of_numbers_as_large_as_there_are(self):
        for name, losses in (("three", [1.7e308, -1.7e308, 1.7e308]), ("many", [1.7e308, -1.7e308] * 300), ("one", [-1.7e308])):
            self.write(name, [{"event": "step", "step": k + 1, "loss": v} for k, v in enumerate(losses)])
            for locale in ("C", "C.UTF-8"):
                r = self.run("report", name, "--text", env={"LC_ALL": locale})
                self.equal((r.code, r.err), (0, ""), r)
                self.check("inf |" not in r.out and "nan |" not in r.out and f"least {min(losses):.6g}" in r.out, r.out)
                rows = [x for x in r.out.splitlines() if x[10:11] == "|"]
                self.equal((len(rows), max(map(len, r.out.splitlines()[3:13])) <= 100), (10, True), r.out)

    def test_in_a_browser(self):
        self.write("runs/a", self.made_up(400))
        self.write("runs/a", self.times(20), "ranks.jsonl")
        odd = self.write("runs/b", self.made_up(300, seed=3))
        (odd / "run.json").write_text('{"parameters": [{"name": "a", "shape": [2, 3]}, 7, {"name": 1, "shape": 2}], "machine": [1]}')
        (odd / "profile.json").write_text('{"rows": [null, 7]}')
        (odd / "settings.ini").write_text("[train]\nseed = 1\n")
        page = self.dir / "report.html"
        self.equal(self.run("report", "runs", "-o", page).code, 0)
        try:
            seen = see_report.look(page, None)
        except LookupError as why:
            raise harness.Skip(why.args[0]) from None
        self.equal([line for line in seen if not line.endswith(": nothing")], [])


if __name__ == "__main__":
    sys.exit(harness.main(Report))
