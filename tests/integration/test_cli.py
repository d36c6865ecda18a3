"""The commands that tell: --check, --print-config, plugins, help, --version; and the line on a terminal."""
import fcntl
import os
import pathlib
import re
import struct
import subprocess
import sys
import termios

import harness
from harness import BUILD, ENGINE, SRC, Case, Skip, seldom, until


class Cli(Case):
    def test_output_that_cannot_be_written(self):
        for args in (["plugins"], ["help", "train"], ["checkpoint", "ls", "."], ["-c", self.ini("x.ini"), "--check"],
                     ["-c", self.ini("x.ini"), "--print-config"]):
            with open("/dev/full", "w") as full:
                r = subprocess.run([harness.ENGINE, *args], stdout=full, stderr=subprocess.PIPE, text=True, cwd=self.dir)
            self.equal(r.returncode, 1, r)
            self.check(r.stderr.strip() == "ddpengine: error: cannot write to standard output: No space left on device", r)

    def test_check_prints_the_plan_and_trains_nothing(self):
        path = self.ini("x.ini", {"output": {"dir": self.dir / "out"}, "checkpoint": {"dir": self.dir / "ckpt"}})
        r = self.run("-c", path, "--check", "--nproc", 2)
        self.equal(r.code, 0, r)
        for part in ("fc1.weight", "24x12", "buckets", "activations", "GFLOP", "809"):
            self.check(part in r.out, (part, r.out))
        self.equal(sorted(p.name for p in self.dir.iterdir()), ["x.ini"])

    def test_check_all_checks_what_is_not_chosen(self):
        good = {"init.file": {"listen": "127.0.0.1"}, "eval.synthetic": {"samples": 3}, "backend.gloo-tcp": {}}
        path = self.ini("good.ini", good)
        r = self.run("-c", path, "--check", "--all")
        self.equal(r.code, 0, r)
        for section in good:
            self.check(f"not used    [{section}] ({path}:" in r.out and ": in order" in r.out, r)
        self.equal(r.out.count("not used"), 3, r)
        bad = {"data.idx": {"imges": "x"}, "eval.synthetic": {"samples": "many"}, "backend.nonesuch": {"a": 1}, "hook.none": {"a": 1}}
        path = self.ini("bad.ini", good, bad)
        self.equal(self.run("-c", path, "--check").code, 0)  # of the others the syntax alone counts
        r = self.run("-c", path, "--check", "--all")
        line = {s: path.read_text().splitlines().index(f"[{s}]") + 1 for s in bad}
        self.equal(r.code, 2, r)  # the first in the file's order
        for section, text in (("data.idx", 'unknown key "imges"'), ("eval.synthetic", "samples = many")):
            self.check(any(f"{path}:{line[section] + 1}: " in e and text in e for e in r.errors()), (section, r))
        for section, text in (("backend.nonesuch", "no such plugin"), ("hook.none", "no such plugin")):
            self.check(any(f"{path}:{line[section]}: [{section}]" in e and text in e for e in r.errors()), (section, r))
        self.equal((len(r.errors()), r.out.count("not used")), (4, 2), r)
        self.fails(self.run("-c", path, "--all"), 2, "--all goes with --check")

    def test_print_config_is_a_config(self):
        path = self.ini("x.ini")
        first = self.run("-c", path, "--print-config")
        self.equal(first.code, 0, first)
        self.check("x.ini:" in first.out and "default" in first.out, first.out)
        again = self.run("-c", self.ini("y.ini", text=first.out), "--print-config")
        self.equal(again.code, 0, again)

        def values(text):
            return [re.split(r"\s+;", line)[0].strip() for line in text.splitlines() if line and line[0] not in "#;"]
        self.equal(values(first.out), values(again.out))

    def test_plugins(self):
        r = self.run("plugins")
        self.equal(r.code, 0, r)
        for name in ("gloo-tcp", "shm", "tcp", "cpu", "idx", "synthetic", "distributed", "sequential", "toy", "mlp"):
            self.check(re.search(rf"^\w+\s+{name}\s", r.out, re.M), (name, r.out))
        r = self.run("plugins", "idx")
        self.equal(r.code, 0, r)
        self.check("[data.idx]" in r.out and "images" in r.out and "labels" in r.out, r.out)
        self.fails(self.run("plugins", "nonsense"), 3, "nonsense")

    def test_help_and_version(self):
        for args, part in ((("--help",), "--nproc"), (("--help",), "conform PLUGIN"), (("--help",), "bench all_reduce"),
                           (("--version",), "ABI"), (("help",), "[train]"), (("help", "train"), "batch_size"),
                           (("help", "group"), "the run ends, or goes on as [run] restarts says")):
            r = self.run(*args)
            self.equal(r.code, 0, r)
            self.check(part in r.out, (args, r.out))
        self.fails(self.run("help", "trian"), 2, "trian", "train")

    def test_every_action_is_in_every_list(self):
        """Of `checkpoint`: its own usage and the program's."""
        actions = re.findall(r"ddpengine checkpoint (\w+)", self.run("checkpoint", "--help").out.split("example:")[0])
        usage = self.run("--help").out.split("ddpengine checkpoint", 1)[1].split("ddpengine audit", 1)[0]
        self.equal(re.findall(r"(?:^|\|)\s*(\w+)", usage), actions)

    def test_every_exit_code_is_in_every_list(self):
        codes = [str(n) for n in range(11)]
        page, manual = (SRC / "docs/exit-codes.md").read_text(), (SRC / "core/cli/manual/ddpengine.1.in").read_text()
        self.equal(re.findall(r"^\| (\d+) \|", page, re.M), codes)
        self.equal(re.findall(r"^\.It (\d+)$", manual, re.M), codes)
        self.equal(re.findall(r"(\d+) [a-z]", self.run("--help").out.split("exit codes:")[1].split("128+n")[0]), codes)
        survives = (SRC / "docs/starting.md").read_text().split("Only the loss of a rank is survived", 1)[1].split("\n\n", 1)[0]
        lists = re.findall(r"\((?:exit codes )?([\d, and]+)\)", survives)
        self.equal(len(lists), 2, survives)
        self.equal([re.findall(r"\d+", text) for text in lists], [["5", "6"], [c for c in codes if c not in ("0", "5", "6")]])

    def test_usage_is_one_line(self):
        path = self.ini("x.ini")
        for args, part in ((("--nonsense",), "--nonsense"), (("-x",), "-x"), (("-c",), "-c"), (("--set",), "--set"),
                           (("--check=3",), "--check"), (("-c", path, "-c", path), "-c"), (("-c", ""), "-c")):
            r = self.run(*args)
            self.fails(r, 2, part, "--help")
            self.equal(len(r.err.splitlines()), 1, r)

    def test_log_level(self):
        """Which lines of a run are printed; its results go to standard output whatever the level."""
        path = self.ini("x.ini", {"group": {"world_size": 2, "interface": "lo"}})
        marks = ("debug: this rank's address is", "training mlp")
        for level, wanted in (("debug", (True, True)), ("info", (False, True)), ("warning", (False, False))):
            for option in (("--log-level", level), ("--set", f"output.log_level={level}")):
                r = self.run("-c", path, "--nproc", "2", *option)
                self.equal((r.code, tuple(m in r.err for m in marks)), (0, wanted), (option, r))
        self.fails(self.run("-c", path, "--log-level", "loud"), 2, "loud", "warning")
        self.fails(self.run("-c", path, "--log-level", "error", "--set", "group.rank=7"), 2, "rank = 7")

    def test_closed_standard_streams(self):
        """Their numbers must not go to files of the run, or the log's lines would be written into them."""
        path = self.ini("x.ini", {"train": {"epochs": 100000}})
        p = subprocess.Popen(["sh", "-c", f"exec {ENGINE} -c {path} <&- >&- 2>&-"])
        self.started.append(p)
        until(lambda: p.poll() is not None or "ddp-queue" in " ".join(
            t.read_text() for t in pathlib.Path(f"/proc/{p.pid}/task").glob("*/comm")), "did not start")
        self.equal([os.readlink(f"/proc/{p.pid}/fd/{fd}") for fd in (0, 1, 2)], ["/dev/null"] * 3)
        p.kill()
        p.wait()
        r = subprocess.run(["sh", "-c", f"exec {ENGINE} -c {path} --check >&-"], capture_output=True, text=True)
        self.equal(r.returncode, 1, r)
        self.check("error: cannot write to standard output" in r.stderr, r)

    def test_every_key_has_a_doc(self):
        sections = re.findall(r"\[(\w+)\]", self.run("help").out.split("sections of the INI file")[-1].split("and one section")[0])
        self.check(len(sections) >= 8, sections)
        for s in sections:
            r = self.run("help", s)
            rows = r.out.splitlines()[1:]
            self.check(rows and all(re.match(r"  \S+\s+\S.*\(.*\)$", x) for x in rows), r.out)

    def test_help_fits_the_terminal(self):
        whole = self.run("help", "train").out
        self.check(max(map(len, whole.splitlines())) > 200, whole)  # no terminal: a row a line
        for columns in (80, 133):
            master, slave = harness.open_terminal()
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            p = self.spawn([ENGINE, "help", "train"], stdout=slave)
            os.close(slave)
            text = harness.read_terminal(master).replace("\r", "")
            self.equal(p.wait(), 0, text)
            self.check(max(map(len, text.splitlines())) <= columns, text)
            self.equal(text.split(), whole.split())

    def test_conf_examples_plan(self):
        for ini in sorted((SRC / "conf").glob("*.ini")):
            if ini.name == "common.ini" or not harness.FASHION.exists():
                continue
            r = self.run("-c", ini, "--check", *(["--nproc", 2] if ini.name in ("quickstart.ini", "pipeline.ini") else []))
            if r.code == 10 and re.search(r"cifar|stl10|gpt2|photos|table|llama|tokenizer", ini.name):  # its data are not part of Debian
                self.fails(r, 10, "dataset ")
                print(f"# {ini.name} goes as far as its data, which are not here: {r.errors()}", flush=True)
                continue
            if "gpu" in ini.name and not (BUILD / ".libs/device_cuda.so").exists():  # nvcc was not there, or sanitizers are
                self.fails(r, 3, 'device "cuda": no such plugin')
                print(f"# {ini.name} goes as far as its device, which is not built", flush=True)
                continue
            if ini.name == "text-lora.ini" and not (harness.SRC / "runs/text-gpt/model").exists():
                self.fails(r, 8, "[checkpoint] init_from", "runs/text-gpt/model")  # another example makes it
                continue
            self.equal(r.code, 0, (ini, r))

    @seldom
    def test_progress_on_a_terminal_and_plain_lines_elsewhere(self):
        path = self.ini("x.ini", {"train": {"epochs": 60}, "output": {"log_every": 400}})
        master, slave = harness.open_terminal()
        p = subprocess.Popen([str(ENGINE), "-c", str(path), "--nproc", "2"], stdout=slave, stderr=slave, stdin=subprocess.DEVNULL,
                             env={**os.environ, "LC_ALL": "C"})
        os.close(slave)
        text = harness.read_terminal(master)
        self.equal(p.wait(), 0, text)
        self.check("\r" in text and "ETA" in text and "loss" in text and "samples/s" in text, text[-800:])
        self.check(re.search(r"done at step 1,?200.*\n.*loss \d\.\d+ to \d\.\d+  [_.:=+*#-]+\r?\n", text), text[-800:])
        r = self.run("-c", path, "--nproc", 2)
        self.check("\r" not in r.err and re.search(r"epoch .* step .* loss .* samples/s", r.err), r)

    @seldom
    def test_progress_fits_the_terminal(self):
        """Whatever its width, and however often it changes."""
        for widths in ((200,), (80,), (30,), (160, 40)):
            path = self.ini("x.ini", {"train": {"epochs": 100000000}})
            master, slave = harness.open_terminal()
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 25, widths[0], 0, 0))
            p = subprocess.Popen([str(ENGINE), "-c", str(path)], stdout=slave, stderr=slave, stdin=subprocess.DEVNULL,
                                 env={**os.environ, "LC_ALL": "C.UTF-8"})
            left = list(widths[1:])

            def watch(text):
                if left and text.count(b"\r") >= 3:
                    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 25, left.pop(), 0, 0))
                    watch.at = len(text)
                elif not left and text.count(b"\r\x1b[K", watch.at) >= 6 and not watch.asked:  # it has drawn enough
                    watch.asked = True
                    p.terminate()

            watch.at, watch.asked = 0, False
            os.close(slave)
            text = harness.read_terminal(master, watch)
            self.equal(p.wait(), 143, text)
            drawn = [x.split("\n")[0] for x in text[watch.at:].split("\r\x1b[K")[2:]]
            drawn = [x for x in drawn if "loss" in x and "ddpengine" not in x][-3 if len(widths) > 1 else 0:]  # some were under way
            self.check(drawn and all(len(x) < widths[-1] for x in drawn), (widths, drawn))
            self.equal(all(re.match(r"\[=*>? *\] +\d+%  (epoch|step)", x) for x in drawn), widths[-1] >= 80, drawn)
            self.check(re.search("loss [\\d.]+ to [\\d.]+  [\u2581-\u2588]{24,48}\r", text), text[-500:])


if __name__ == "__main__":
    sys.exit(harness.main(Cli))
