#!/usr/bin/env python3
"""Makes a site of README.md, CONTRIBUTING.md, CHANGELOG.md and docs/, as they are read on a forge: `make html`.

usage: build.py VERSION FOLDER        FOLDER/html is the site, FOLDER/source what Sphinx read, FOLDER/doctrees its cache

The table of contents is docs/README.md. A file of the tree that a page links to, such as an INI, becomes a page. Needs
Sphinx, MyST and furo; a link that leads nowhere, a page that is not in the table of contents, or any other warning of
Sphinx is a failure (exit code 1); 3: something that it needs is not there, and the line says what."""
import os
import pathlib
import re
import subprocess
import sys

SITE = pathlib.Path(__file__).resolve().parent
ROOT = SITE.parent.parent
CONTENTS = ROOT / "docs/README.md"
NEEDS = {"sphinx": "python3-sphinx", "myst_parser": "python3-myst-parser", "furo": "furo"}
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^([ \t]*```.*?^[ \t]*```[ \t]*$)", re.M | re.S)
LANGUAGES = {".ini": "ini", ".c": "c", ".h": "c", ".py": "python", ".service": "ini", "Containerfile": "docker", "Makefile": "make"}


class Broken(Exception):
    pass


def pages():
    return [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted((ROOT / "docs").rglob("*.md"))


def contents():
    """[(part, [(page, title)])], in order."""
    out = []
    for part in re.split(r"^## ", CONTENTS.read_text(), flags=re.M)[1:]:
        links = re.findall(r"^- \[([^\]]*)\]\(([^)#]+)\)", part, re.M)
        out.append((part.splitlines()[0], [((CONTENTS.parent / to).resolve(), title) for title, to in links]))
    return out


def place(path):
    """Where a page or file of the tree is in the site's source, relative to it."""
    inside = path.relative_to(ROOT)
    if path == CONTENTS:
        return pathlib.Path("index.md")
    if path == ROOT / "README.md":
        return pathlib.Path("project.md")
    if path.suffix == ".md":
        return inside.relative_to("docs") if inside.parts[0] == "docs" else inside
    return pathlib.Path("files") / (str(inside) + ".md")


def file_page(path):
    """A page that shows a file, or the files of a folder."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    out = ["---", "orphan: true", "---", "", f"# {path.relative_to(ROOT)}", ""]
    for file in files:
        if path.is_dir():
            out += [f"## {file.relative_to(path)}", ""]
        out += [f"````{LANGUAGES.get(file.suffix or file.name, 'none')}", file.read_text().rstrip("\n"), "````", ""]
    return "\n".join(out)


def converted(path, known, files):
    """The page's text with its links as the site has them; adds what it links to beside pages to `files`."""
    here = place(path).parent

    def link(m):
        text, target = m[1], m[2]
        name, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:") or not name:
            return m[0]
        to = (path.parent / name).resolve()
        if to.is_dir() and (to / "README.md") in known:
            to = to / "README.md"
        if not to.exists():
            raise Broken(f"{path.relative_to(ROOT)}: a link to {target}, which is not there")
        if to not in known:
            files.add(to)
        return f"[{text}]({os.path.relpath(place(to), here)}{'#' + anchor if anchor else ''})"

    parts = FENCE.split(path.read_text())
    parts[::2] = [LINK.sub(link, part) for part in parts[::2]]
    return "".join(parts)


def toctree(caption, names):
    return "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *names, "```", ""])


def write(path, text):
    """An unchanged file keeps its time, for Sphinx's cache."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def stage(source):
    known, files, written = set(pages()), set(), set()
    listed = [page for _, part in contents() for page, _ in part]
    lacking = known - {CONTENTS, ROOT / "README.md"} - set(listed)
    if lacking or len(listed) != len(set(listed)):
        raise Broken("docs/README.md, the table of contents, lacks or lists twice: " + ", ".join(
            str(p.relative_to(ROOT)) for p in sorted(lacking | {p for p in listed if listed.count(p) > 1})))
    for page in sorted(known):
        text = converted(page, known, files)
        if page == CONTENTS:
            text += toctree("ddpengine", ["project"])
            for caption, part in contents():
                text += toctree(caption, [f"{title} <{place(p).with_suffix('')}>" for p, title in part])
        write(source / place(page), text)
        written.add(source / place(page))
    for file in files:
        write(source / place(file), file_page(file))
        written.add(source / place(file))
    for old in set(source.rglob("*.md")) - written:
        old.unlink()


def without_server(static):
    """Debian's furo asks a server for a style, and its script is a module, which browsers refuse of files: one script instead."""
    style, script, part = (static / x for x in ("styles/furo.css", "scripts/furo.js", "scripts/gumshoe-patched.js"))
    if style.exists():
        write(style, re.sub(r"^@import url\(/javascript/[^)]*\);\n", "", style.read_text()))
    if script.exists() and part.exists() and script.read_text().startswith("import "):
        write(script, part.read_text() + re.sub(r"^import .*\n", "", script.read_text()))


def interpreter():
    """The Python that has what is needed, this one or Debian's, and the packages that it lacks."""
    probe = f"import importlib.util as u; print(*(p for m, p in {NEEDS}.items() if u.find_spec(m) is None))"
    for python in (sys.executable, "/usr/bin/python3"):
        if os.access(python, os.X_OK):
            missing = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=True).stdout.split()
            if not missing:
                break
    return python, missing


def main():
    version, folder = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    python, missing = interpreter()
    if missing:
        print(f"make html: error: not installed: {' '.join(missing)}; on Debian: apt-get install {' '.join(missing)}", file=sys.stderr)
        return 3
    try:
        stage(folder / "source")
    except Broken as e:
        print(f"make html: error: {e}", file=sys.stderr)
        return 1
    done = subprocess.run([python, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-c", SITE, "-d", folder / "doctrees",
                           folder / "source", folder / "html"], env={**os.environ, "DDP_SITE_VERSION": version, "DDP_SITE_STATIC": str(SITE / "static")}, check=False)
    without_server(folder / "html/_static")
    if done.returncode == 0:
        print(f"{folder / 'html/index.html'}")
    return 1 if done.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
