"""Help, manual pages and completion: each has every command, option and key, for all are made of the same tables."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import BUILD, Case, Skip, seldom, until  # noqa: E402


class Manual(Case):
    def out(self, *args):
        r = self.run(*args)
        self.equal((r.code, r.err), (0, ""), r)
        return r.out

    def commands(self):
        """name: help, of each command that has its own."""
        names = re.findall(r"^  ([a-z][\w-]*) ", self.out("--help"), re.M)
        self.check(len(names) >= 15, names)
        return {"": self.out("--help"), **{n: self.out(n, "--help") for n in names if n not in ("eval", "plugins", "help")}}

    def options(self, text):
        """Those of a usage text: the names in its left column."""
        return re.findall(r"^  (?:-\w, )?(--[a-z-]+)", text, re.M)

    def keys(self):
        """section: its keys, of the core and of all plugins."""
        core = re.findall(r"\[(\w+)\]", self.out("help").split("sections of the INI file")[-1].split("and one section")[0])
        found = {s: re.findall(r"^  (\w+)", self.out("help", s), re.M) for s in core}
        self.check(len(found) >= 15, found)
        return found

    def plugins(self):
        """(kind, name, section, keys) of each."""
        for kind, name in re.findall(r"^(\w+) +(\S+) ", self.out("plugins"), re.M):
            text = self.out("plugins", f"{kind}.{name}")
            section = re.search(r"^options, in section \[(.*)\]:$", text, re.M)
            yield kind, name, section and section[1], re.findall(r"^  (\w+)", text.split("]:\n", 1)[1], re.M) if section else []

    def complete(self, *words):
        return [line.split("\t")[0] for line in self.out("--complete", *words).splitlines()]

    def test_help_has_80_columns_and_an_example(self):
        commands = self.commands()
        for name, text in commands.items():
            self.check(max(map(len, text.splitlines())) <= 80, (name, text))
            example = re.search(r"^example: (?:source <\()?ddpengine (.*)$", text, re.M)
            self.check(example, (name, text))
            words = example[1].split()
            self.check(name == "" or words[0] == name, (name, words))
            for option in (w for w in words if w.startswith("--")):
                self.check(option in self.options(text), (name, option))
            usage = re.split(r"^  \S", text, maxsplit=1, flags=re.M)[0]
            for option in re.findall(r"(--[a-z-]+)", usage) if name else []:
                self.check(option in self.options(text) or option == "--adapter", (name, option))

    def test_manual_has_every_command_option_and_key(self):
        if not (BUILD / "docs/man/stamp").exists():
            raise Skip("no manual pages: the program of this build was not run by make")
        page = (BUILD / "docs/man/ddpengine.1").read_text().replace("\\-", "-").replace("\\&", "")
        self.check(not re.search(r"^@", page, re.M), "a part is missing")
        sections = {s.split("\n", 1)[0]: s for s in page.split("\n.Ss ")[1:]}
        for name, text in self.commands().items():
            part = sections[name] if name else page.split(".Sh OPTIONS")[1].split(".Sh COMMANDS")[0]
            for option in self.options(text):
                self.check(re.search(rf"^\.It (?:Fl \w , )?Fl {option[1:]}\b", part, re.M), (name, option))
        page = (BUILD / "docs/man/ddpengine.ini.5").read_text().replace("\\&", "")
        for section, keys in self.keys().items():
            part = page.split(f"\n.Ss [{section}]\n")[1].split("\n.Ss")[0].split("\n.Sh")[0]
            self.equal(re.findall(r"^\.It Cm (\w+)$", part, re.M), keys, section)
        for kind, name, section, keys in self.plugins():
            page = (BUILD / f"docs/man/ddpengine-{kind}-{name}.7").read_text().replace("\\&", "")
            self.equal(re.findall(r"^\.It Cm (\w+)$", page, re.M), keys, (kind, name))
            self.check(".Sh EXAMPLES" in page, page)

    def test_manual_pages_are_right_for_man_and_mandoc(self):
        pages = sorted((BUILD / "docs/man").glob("*.[157]"))
        if not pages or (shutil.which("mandoc") is None and shutil.which("man") is None):
            raise Skip("no manual pages, or neither man nor mandoc")
        if shutil.which("mandoc"):
            r = subprocess.run(["mandoc", "-T", "lint", "-W", "style", *pages], capture_output=True, text=True)
            said = [x for x in (r.stdout + r.stderr).splitlines() if "referenced manual not found" not in x and "mandoc.db" not in x]
            self.equal(said, [])
        if shutil.which("man") and shutil.which("groff"):
            for page in pages:
                if re.search(r"\.[15]$", page.name) or "-dataset-s" in page.name:  # the others have the same form
                    r = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", page], capture_output=True, text=True,
                                       env={**os.environ, "MANPAGER": "cat", "MANWIDTH": "80", "LC_ALL": "C.UTF-8"})
                    self.equal((r.returncode, r.stderr), (0, ""), page)

    def test_manual_example_is_an_ini(self):
        page = self.out("manual", "ini").replace("\\-", "-").replace("\\&", "")
        path = self.ini("x.ini", text=page.split(".Bd -literal\n")[-1].split(".Ed")[0])
        r = self.run("-c", path, "--print-config")
        self.equal(r.code, 0, r)

    def test_manual_says_what_it_has(self):
        self.fails(self.run("manual"), 2, "no page", "manual --help")
        self.fails(self.run("manual", "nonsense"), 2, '"nonsense"', "ini", "KIND.NAME")
        self.fails(self.run("manual", "backend.nonsense"), 3, "nonsense", "no such plugin")
        self.fails(self.run("completion", "fish"), 2, "fish", "bash or zsh")

    @seldom
    def test_completion_has_every_command_option_and_key(self):
        for name, text in self.commands().items():
            self.check(not name or name in self.complete(name[:2]), name)
            got = self.complete(*([name] if name else []), "--")
            self.equal(sorted(x for x in got if x != "--help"), sorted(x for x in self.options(text) if x != "--help"), name)
            self.check("--help" in got, got)
        for section, keys in self.keys().items():
            self.check(f"{section}." in self.complete("--set", section[:1]), section)
            self.equal([x for x in self.complete("--set", f"{section}.") if x.endswith("=")], [f"{section}.{k}=" for k in keys])
        names = {}
        for kind, name, section, keys in self.plugins():
            names.setdefault(kind, []).append(name)
            self.check(f"{kind}.{name}" in self.complete("conform", kind), name)
            if section:
                self.check(f"{section}." in self.complete("eval", "--set", section.split(".")[0] + "."), section)
                self.equal(self.complete("--set", f"{section}."), [f"{section}.{k}=" for k in keys])
        for key, kind in (("group.backend", "backend"), ("model.plugin", "model"), ("data.plugin", "dataset"), ("eval.plugin", "dataset"),
                          ("sampler.plugin", "sampler"), ("hook.plugin", "hook"), ("train.device", "device")):
            self.equal(self.complete(f"--set={key}="), [f"--set={key}={n}" for n in names[kind]])

    def test_completion_of_values(self):
        for words, candidates in ((("--set", "optimizer.algorithm=ad"), ["optimizer.algorithm=adam", "optimizer.algorithm=adamw"]),
                                  (("--set", "ddp.broadcast_buffers="), ["ddp.broadcast_buffers=yes", "ddp.broadcast_buffers=no"]),
                                  (("checkpoint", "p"), ["prune"]), (("bench", ""), ["all_reduce"]), (("new", "mo"), ["model"]), (("new", "model", ""), []),
                                  (("manual", "com"), ["commands"]), (("plugins", "backend.sh"), ["backend.shm"]), (("help", "tr"), ["train"]),
                                  (("merge", "--dtype", ""), ["f32", "bf16"]), (("export", "on"), ["onnx"]), (("-c", ""), [":files"]),
                                  (("checkpoint", "verify", ""), [":files"]), (("--nproc", ""), []), (("nonsense", ""), []), ((), self.complete("")),
                                  (("--set", "nonsense.key="), []), (("--set", "model.nonsense.x="), []), (("--nonsense=",), [])):
            self.equal(self.complete(*words), candidates, words)

    def type_to(self, argv, setup, typed, shown):
        """What a shell on a terminal shows after `typed`, which ends with a tab."""
        master, slave = harness.open_terminal()
        p = self.spawn(argv, env={"TERM": "dumb", "PATH": f"{BUILD}:{os.environ['PATH']}", "HOME": str(self.dir), "PS1": "> "}, stdin=slave,
                       stdout=slave, stderr=slave, start_new_session=True)
        os.close(slave)
        os.set_blocking(master, False)
        seen = bytearray()

        def reads(part):
            try:
                seen.extend(os.read(master, 4096))
            except BlockingIOError:
                pass
            return part in bytes(seen)
        os.write(master, setup.encode() + b"\n")
        until(lambda: reads(b"READY-2"), lambda: f"the shell is not ready: {bytes(seen)}")
        del seen[:]
        os.write(master, typed.encode())
        until(lambda: reads(shown.encode()), lambda: f"not completed: {bytes(seen)}")
        p.kill()
        p.wait()
        os.close(master)

    @seldom
    def test_completion_in_shells(self):
        for shell, argv, first in (("bash", ["bash", "--norc", "--noprofile", "-i"], ""),
                                   ("zsh", ["zsh", "-f", "-i"], "autoload -U compinit; compinit -u -D; ")):
            if shutil.which(shell) is None:
                print(f"# no {shell}", flush=True)
                continue
            setup = f"{first}source <(ddpengine completion {shell}); echo READY-$((1+1))"
            for typed, shown in (("ddpengine checkp\t", "checkpoint "), ("ddpengine --set group.backend=sh\t", "group.backend=shm"),
                                 ("ddpengine --set train.batch_s\t", "train.batch_size="), ("ddpengine --nproc 2 --che\t", "--check")):
                self.type_to(argv, setup, typed, shown)


if __name__ == "__main__":
    harness.main(Manual)
