"""Every command printed in README.md and docs/ runs: `ddpengine` commands here, the others by continuous integration."""
import re
import shutil
import sys

import harness
from harness import FASHION, SRC, Case, Skip, long_case

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
                    args += ["--set", "train.max_steps=12"]
                p = self.start(*args)
                started.append((x, p))
                if "node" not in x:  # the nodes of a block run side by side, everything else in turn
                    self.done(page, started)
            self.done(page, started)
            ran += len(ours)
        self.check(ran >= 5, f"only {ran} commands found")

    def done(self, page, started):
        for x, p in started:
            r = self.finish(p)
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

    def test_every_kind_is_in_every_list(self):
        """DDP_KIND_MAP is the one list: --version, the table for authors, and a header that defines what the map says."""
        kinds = re.findall(r"^    X\([A-Z]+, ([a-z]+), \d+\)", (SRC / "core/include/ddpengine/plugin.h").read_text(), re.M)
        self.check(len(kinds) >= 7, kinds)
        self.equal(re.findall(r"([a-z]+) \d+", self.run("--version").out.splitlines()[1].split(":", 1)[1]), kinds)
        table = (SRC / "docs/writing-plugins.md").read_text().split("| kind |", 1)[1].split("\n\n", 1)[0]
        self.equal(sorted(re.findall(r"^\| `([a-z]+)` \|", table, re.M)), sorted(kinds))
        for kind in kinds:
            header = (SRC / f"core/include/ddpengine/{kind}.h").read_text()
            for name in (f"DDP_{kind.upper()}_ABI", f"DDP_{kind.upper()}_SERVICES", f"ddp_{kind}_ops"):
                self.check(name in header, f"{kind}.h has no {name}")

    def test_every_page_is_reachable_and_every_link_leads_somewhere(self):
        pages = [SRC / "README.md", SRC / "CONTRIBUTING.md", SRC / "CHANGELOG.md", *sorted((SRC / "docs").rglob("*.md"))]
        linked = set()
        for page in pages:
            for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
                if "://" in target:
                    continue
                path = (page.parent / target).resolve()
                self.check(path.exists(), f"{page.name} links to {target}, which is not there")
                linked.add(path)
        for page in (SRC / "docs").rglob("*.md"):
            self.check(page.resolve() in linked, f"no page links to {page.name}")


if __name__ == "__main__":
    sys.exit(harness.main(Docs))
