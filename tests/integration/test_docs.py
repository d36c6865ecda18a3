"""Every command printed in README.md and docs/ runs: `ddpengine` commands here, the others by continuous integration. Links lead
somewhere, by a forge's rules, which Sphinx's site follows too; what is generated is what the program prints; quoted messages are
the program's."""
import fnmatch
import importlib.util
import re
import shutil
import sys

import harness
from harness import ENGINE, FASHION, SRC, Case, Skip, long_case


def module(name, path):
    spec = importlib.util.spec_from_file_location(name, SRC / path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


generate, site = module("generate", "docs/generate.py"), module("site_build", "docs/site/build.py")

# run by .ci/run: the first one as `./quickstart check` and its training as the command below it in the README
ELSEWHERE = {"./quickstart", "./quickstart check", "make -s bench"}
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.M | re.S)


def blocks():
    for page in [SRC / "README.md", *sorted((SRC / "docs").rglob("*.md"))]:
        if page.parent.name == "recipes":  # test_recipes.py follows them
            continue
        for block in BLOCK.findall(page.read_text()):
            lines = [re.sub(r"\s+#.*$", "", x).strip() for x in block.replace("\\\n", " ").splitlines()]
            yield page.name, [x for x in lines if x and not x.startswith("#")]


class Docs(Case):
    @long_case
    def test_every_command_runs(self):
        if not FASHION.exists():
            raise Skip("dataset-fashion-mnist is not installed")
        shutil.copytree(SRC / "conf", self.dir / "conf")
        ran = 0
        for page, lines in blocks():
            ours = [x for x in lines if re.match(r"(\./)?ddpengine\b", x)]
            for x in lines:
                self.check(x in ours or x in ELSEWHERE, f"{page}: nobody runs: {x}")
            started = []
            for x in ours:
                args = x.split()[1:]
                if "-c" in args and not {"--check", "--print-config"} & set(args):
                    steps = 12 if "10-12" in x else 4  # 10-12 are traced
                    args += ["--set", f"train.max_steps={steps}", "--set", "optimizer.warmup_steps=0"]
                p = self.start(*args)
                started.append((x, p))
                if "node" not in x:  # the nodes of a block run side by side, everything else in turn
                    self.done(page, started)
            self.done(page, started)
            ran += len(ours)
        self.check(ran >= 5, f"only {ran} commands found")

    def done(self, page, started):
        for x, p in started:
            r = self.finish(p, 300)  # stages that hand over to each other take seconds a step beside others
            self.equal(r.code, 0, f"{page}: {x}\n{r}")
        started.clear()

    def test_unit(self):
        """systemd understands every line of it, and the program its command."""
        if shutil.which("systemd-analyze") is None:
            raise Skip("no systemd-analyze (systemd)")
        text = (SRC / "conf/ddpengine@.service").read_text()
        command = re.search(r"^ExecStart=/usr/bin/ddpengine -c /etc/ddpengine/%i.ini (.*)$", text, re.M)
        self.check(command, text)
        r = self.run("-c", self.ini("x.ini"), *command[1].split(), "--check")
        self.equal(r.code, 0, r)
        (self.dir / "ddpengine@.service").write_text(text.replace("/usr/bin/ddpengine", str(harness.ENGINE)))
        r = self.finish(self.spawn(["systemd-analyze", "verify", "--man=no", self.dir / "ddpengine@.service"]))
        self.equal((r.code, r.err), (0, ""), r)
        r = self.finish(self.spawn(["systemd-analyze", "security", "--offline=yes", "--threshold=30", self.dir / "ddpengine@.service"]))
        self.equal(r.code, 0, r)  # of 100; systemd calls up to 40 "ok"
        settings = dict(re.findall(r"^(\w+)=(.*)$", text, re.M))
        self.equal([x for x in settings["RestartPreventExitStatus"].split() if x not in ("2", "7", "9")], [])
        self.check("2" in settings["RestartPreventExitStatus"].split(), text)

    def test_debian_packages_have_every_plugin(self):
        """Each plugin of this tree is in one package, and the program's list names those that are in packages of their own."""
        folder = SRC / "conf/packaging/debian"
        r = self.finish(self.spawn(["sh", "plugins/collect.sh", "list"], cwd=SRC))
        files = {f"{kind}_{name.replace('-', '_')}.so" for kind, name in map(str.split, r.out.splitlines())}
        listed = dict(map(str.split, (folder / "plugin-packages").read_text().splitlines()))
        packages = re.findall(r"^Package: (\S+)$", (folder / "control").read_text(), re.M)
        for file in files:
            having = [p for p in packages if (folder / f"{p}.install").exists() and any(
                fnmatch.fnmatch(f"usr/lib/x/ddpengine/{file}", pattern) for pattern in (folder / f"{p}.install").read_text().split())]
            self.equal(having, [listed.get(file, "ddpengine")], file)
        self.equal(set(listed) - files, set())
        built = set(re.findall(r"^[^|\n]+\|([^|]+)\|", (SRC / "quickstart").read_text(), re.M))
        self.check(len(built) > 20, built)
        needs = set(re.findall(r"^(?:Build-Depends:)?\s+([\w.-]+)", (folder / "control").read_text().split("Package:")[0], re.M))
        self.equal({p for p in built if p.startswith("lib") and p.endswith("-dev") or "protobuf" in p} - needs, set())
        version = re.search(r"AC_INIT\(\[ddpengine\], \[(.*)\]\)", (SRC / "configure.ac").read_text())[1]
        self.check((folder / "changelog").read_text().startswith(f"ddpengine ({version}-"))

    def test_every_kind_is_in_every_list(self):
        """DDP_KIND_MAP is the one list: --version, the table for authors, and a header that defines what the map says."""
        kinds = re.findall(r"^    X\([A-Z]+, ([a-z]+), \d+\)", (SRC / "core/include/ddpengine/plugin.h").read_text(), re.M)
        self.check(len(kinds) >= 7, kinds)
        self.equal(re.findall(r"([a-z]+) \d+", self.run("--version").out.splitlines()[1].split(":", 1)[1]), kinds)
        table = (SRC / "docs/writing-plugins/README.md").read_text().split("| kind |", 1)[1].split("\n\n", 1)[0]
        self.equal(sorted(re.findall(r"^\| `([a-z]+)` \|", table, re.M)), sorted(kinds))
        for kind in kinds:
            header = (SRC / f"core/include/ddpengine/{kind}.h").read_text()
            for name in (f"DDP_{kind.upper()}_ABI", f"DDP_{kind.upper()}_SERVICES", f"ddp_{kind}_ops"):
                self.check(name in header, f"{kind}.h has no {name}")

    @staticmethod
    def anchors(page):
        """Of the headings of a page, as forges name them."""
        out = set()
        for heading in re.findall(r"^#{1,6} +(.*?) *$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.M):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("&lt;", "<").replace("\\", "")
            name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            out.add(name if name not in out else f"{name}-1")
        return out

    def test_every_link_leads_somewhere(self):
        pages = site.pages()
        anchors = {page: self.anchors(page) for page in pages}
        for page in pages:
            for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
                if "://" in target:
                    continue
                name, _, anchor = target.partition("#")
                path = (page.parent / name).resolve() if name else page
                where = f"{page.relative_to(SRC)} links to {target}"
                self.check(path.exists(), f"{where}, which is not there")
                self.check(not anchor or path not in anchors or anchor in anchors[path], f"{where}; that page has no such heading")

    def test_every_page_is_in_the_table_of_contents(self):
        listed = [page for _, part in site.contents() for page, _ in part]
        pages = set(site.pages()) - {SRC / "README.md", site.CONTENTS}
        self.equal([str(p.relative_to(SRC)) for p in pages ^ set(listed)], [], "docs/README.md lacks them, or they are not there")
        self.equal(len(listed), len(set(listed)), "docs/README.md lists one twice")

    def test_keys_and_commands_are_those_of_the_program(self):
        for page, text in (("config", generate.config(ENGINE)), ("commands", generate.commands(ENGINE))):
            self.check((SRC / f"docs/{page}.md").read_text() == text, f"docs/{page}.md differs from the program; docs/generate.py makes it so")

    def test_keys_that_pages_name_are_keys(self):
        """`[train] seed` in prose and tables; the sections of plugins are compared in plugins.md."""
        keys = {}
        for line in self.run("manual", "keys").out.splitlines():
            section, key = line.split("\t")[:2]
            keys.setdefault(section, set()).add(key)
        for page in site.pages():
            if page.name == "CHANGELOG.md":  # names what was
                continue
            for section, key in re.findall(r"`\[(\w+)\] ([a-z_]+)(?=`| =)", page.read_text()):
                if section in keys:
                    self.check(key in keys[section], f"{page.relative_to(SRC)}: [{section}] {key} is no key")


if __name__ == "__main__":
    sys.exit(harness.main(Docs))
