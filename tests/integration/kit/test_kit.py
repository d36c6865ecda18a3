"""The kit for authors of plugins: what `ddpengine new` writes builds, keeps its contract and trains as it is, and docs/ shows it."""
import importlib.util
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import BUILD, ENGINE, SRC, Case, Skip, long_case, seldom  # noqa: E402

spec = importlib.util.spec_from_file_location("generate", SRC / "docs/generate.py")
generate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generate)
KINDS = re.findall(r"^    X\([A-Z]+, ([a-z]+), \d+\)", (SRC / "core/include/ddpengine/plugin.h").read_text(), re.M)
FILES = ["CMakeLists.txt", "Makefile", "README.md", ".gitignore", "example.ini"]
STRICT = "CFLAGS=-O0 -Werror"


class Kit(Case):
    """Makefiles find the program and its headers by the .pc file of the build folder, as an author without root has it."""

    def made(self, kind, name="my-own", *args):
        folder = self.dir / kind
        r = self.run("new", kind, name, "--dir", folder, *args)
        self.equal(r.code, 0, r)
        self.check(f"cd {folder} && make check" in r.out, r)
        return folder

    def command(self, folder, *argv, **env):
        """Not as a part of the `make check` that may have started this test."""
        return self.spawn(argv, env={"PKG_CONFIG_PATH": str(BUILD), "MAKEFLAGS": "", "MFLAGS": "", "MAKELEVEL": "0", **env}, cwd=folder)

    @seldom
    def test_each_kind_builds_keeps_its_contract_and_trains_unedited(self):
        self.equal(sorted(KINDS), sorted(generate.KINDS))
        folders = {kind: self.made(kind) for kind in KINDS}
        for kind, folder in folders.items():
            source = f"{kind}_my_own.c"
            self.equal(sorted(p.name for p in folder.iterdir()), sorted([*FILES, source]))
            text = "".join(p.read_text() for p in folder.iterdir())
            self.check(not re.search(r"@[A-Z]+@", text), text)
            self.check(len((folder / source).read_text().splitlines()) < 100, f"{source} has 100 lines or more")
            self.check(len((folder / "README.md").read_text().splitlines()) <= 20, folder)
        # most of the time a backend waits for time-outs: all of them side by side
        shutil.copytree(SRC / "docs/examples/backend-sockets", self.dir / "sockets")
        all_of_them = [*((f'{kind} "my-own" 1.0', folder) for kind, folder in folders.items()), ('backend "sockets" 1.0', self.dir / "sockets")]
        checks = [(head, self.command(folder, "make", "-s", STRICT, "check")) for head, folder in all_of_them]
        for head, p in checks:
            r = self.finish(p)
            self.equal(r.code, 0, r)
            self.check(re.search(r"^[1-9]\d* passed, 0 failed, \d+ skipped$", r.out.splitlines()[-1]), r)
            self.check(head in r.out, r)
        r = self.run("-c", "sockets.ini", "--nproc", 3, cwd=self.dir / "sockets")
        self.equal(r.code, 0, r)
        rendezvous = self.dir / "rendezvous"
        rendezvous.write_text("127.0.0.1:1\n")  # of a run that was killed
        for kind, folder in folders.items():
            own = ["--set", f"group.init_method=my-own://{rendezvous}"] if kind == "init" else []  # not /tmp, where other tests are
            r = self.run("-c", "example.ini", "--nproc", 2, *own, cwd=folder)
            self.equal(r.code, 0, r)
            self.check(kind != "init" or not rendezvous.exists(), "rank 0 leaves its file")
            if kind in ("backend", "device", "model"):
                self.check("my-own" in r.err, r)
        r = self.finish(self.command(folders["hook"], "make", "-s", "install", DESTDIR=str(self.dir / "root")), 60)
        self.check(r.code != 0, "there is no plugin folder below this root yet")
        to = pathlib.Path(str(self.dir / "root") + str(BUILD / ".libs"))
        to.mkdir(parents=True)
        r = self.finish(self.command(folders["hook"], "make", "-s", "install", DESTDIR=str(self.dir / "root")))
        self.equal((r.code, [p.name for p in to.iterdir()]), (0, ["hook_my_own.so"]), r)

    def test_a_device_of_the_kit_trains_as_device_cpu(self):
        folder = self.made("device")
        r = self.finish(self.command(folder, "make", "-s"))
        self.equal(r.code, 0, r)
        for layer in ({}, {"optimizer": {"algorithm": "adamw", "lr": 0.01, "momentum": None, "weight_decay": 0.1, "clip_norm": 0.5}},
                      {"train": {"accumulate": 2}, "eval": {"plugin": "synthetic"},
                       "eval.synthetic": {"samples": 100, "shape": 12, "classes": 4, "seed": 2}}):
            own = self.train(layer, {"train": {"device": "my-own"}}, env={"DDPENGINE_PLUGIN_PATH": str(folder)}, name="own.ini")
            cpu = self.train(layer, name="cpu.ini")
            for key in ("final_loss", "eval_loss"):
                a, b = own.summary.get(key), cpu.summary.get(key)
                self.check((a is None and b is None) or abs(a - b) < 1e-4 * (1 + abs(b)), (key, a, b))
            self.equal(own.summary["device"], "my-own", own.summary)

    @seldom
    def test_a_backend_of_the_kit_trains_as_the_others(self):
        folder = self.made("backend")
        r = self.finish(self.command(folder, "make", "-s"))
        self.equal(r.code, 0, r)
        env = {"DDPENGINE_PLUGIN_PATH": str(folder)}
        for more in ({}, {"ddp": {"zero": 1}}):
            own = self.train({"group": {"backend": "my-own"}}, more, nproc=3, env=env, name="own.ini")
            other = self.train({"group": {"backend": "gloo-tcp"}}, more, nproc=3, name="other.ini")
            a, b = own.summary["final_loss"], other.summary["final_loss"]
            self.check(abs(a - b) < 1e-5 * (1 + abs(b)), (a, b))

    @long_case
    def test_a_backend_from_two_functions_keeps_its_contract_in_full(self):
        folder = self.made("backend")
        r = self.finish(self.command(folder, "make", "-s"))
        self.equal(r.code, 0, r)
        r = self.run("conform", folder / "backend_my_own.so", "--nproc", 4, timeout=600)
        self.equal(r.code, 0, r)
        self.check(re.search(r"^\d{4} passed, 0 failed", r.out.splitlines()[-1]), r)

    def test_cmake_builds_and_tests_it(self):
        if shutil.which("cmake") is None:
            raise Skip("no cmake")
        folder = self.made("model")
        for argv in (["cmake", "-B", "build"], ["cmake", "--build", "build"], ["ctest", "--test-dir", "build"]):
            r = self.finish(self.command(folder, *argv))
            self.equal(r.code, 0, r)
        self.check("100% tests passed, 0 tests failed out of 1" in r.out, r)
        self.check((folder / "build/model_my_own.so").exists(), r)

    def test_the_headers_are_clean_in_c_and_cpp(self):
        """compose.h and simple_device.h define what a plugin has once, so each is tried in a plugin's place."""
        (self.dir / "x.cc").write_text("""
            #include <ddpengine/compose.h>
            #include <ddpengine/simple_device.h>
            static ddp_simple_run ddp_simple_kernel(const ddp_node *) { return nullptr; }
            static void ddp_simple_describe(ddp_device *, ddp_device_info *) {}
            static ddp_status create(ddp_backend *, const ddp_comm_params *, ddp_comm **, ddp_err *) { return DDP_OK; }
            extern const ddp_backend_ops b = {.struct_size = sizeof(b), .caps = DDP_COMPOSE_CAPS, .open = ddp_compose_open,
                                              .close = ddp_compose_close, .comm_create = create, DDP_COMPOSE_SLOTS};
            extern const ddp_device_ops d = {.struct_size = sizeof(d), .caps = DDP_SIMPLE_CAPS, DDP_SIMPLE_SLOTS};
            """)
        strict = ["-Wall", "-Wextra", "-Wconversion", "-Wpedantic", "-Werror", "-Wno-missing-field-initializers", "-fsyntax-only",
                  f"-I{SRC}/core/include"]
        subprocess.run(["c++", "-std=c++20", *strict, "x.cc"], cwd=self.dir, check=True)
        for standard in ("c99", "c11"):
            subprocess.run(["cc", f"-std={standard}", "-D_POSIX_C_SOURCE=200809L", *strict, "-x", "c", "-"], check=True, text=True,
                           input="#include <ddpengine/reduce.h>\n#include <ddpengine/compose.h>\n#include <ddpengine/compose.h>\n")
        r = subprocess.run(["cc", "-std=c11", *strict, "-x", "c", "-"], text=True, capture_output=True,
                           input="#include <ddpengine/compose.h>\n", check=False)
        self.check(r.returncode != 0 and "compile with -std=gnu11" in r.stderr, r.stderr)

    # ---- mistakes ----------------------------------------------------------------------------------------------------
    def test_mistakes_have_one_line_and_leave_nothing(self):
        def fails(*args, code=2, has=()):
            self.fails(self.run("new", *args), code, *has)

        fails(has=["which kind"])
        fails("modle", "x", has=['"modle"', "did you mean model?"])
        fails("optimizer-state", "x", has=['"optimizer-state"', "there are backend, init, device, model, sampler, dataset, hook"])
        fails("model", has=["what is the plugin to be called"])
        fails("model", "a", "b", has=["too many arguments", "b"])
        for name in ("My_Net", "2d", "-x", "net-", "", "../net", "a" * 41, "nété"):
            fails("model", "--dir", "out", "--", name, has=["small letters, digits and '-'"])
        fails("model", "net", "--dir", "nowhere/net", has=["nowhere/net", "make the folder that it is to be in first"])
        fails("model", "net", "--dir", "", has=["--dir"])
        fails("model", "net", "--dir", "x" * 5000, has=["too long"])
        self.equal(list(self.dir.iterdir()), [])
        (self.dir / "net").mkdir()
        (self.dir / "net/mine.c").write_text("kept")
        fails("model", "net", has=["net", "File exists", "--dir"])
        self.equal([p.name for p in (self.dir / "net").iterdir()], ["mine.c"])
        r = self.run("new", "--help")
        self.equal(r.code, 0, r)
        self.check(max(map(len, r.out.splitlines())) <= 100 and "ddpengine new model my-net" in r.out, r)
        self.check(all(re.search(rf"\b{kind}\b", r.out) for kind in KINDS), r)

    def test_a_disk_that_is_full_leaves_no_folder(self):
        def small_files():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))

        r = self.finish(self.spawn([ENGINE, "new", "dataset", "net"], preexec_fn=small_files))
        self.fails(r, 1, "net/", "File too large")
        self.check(not (self.dir / "net").exists(), list(self.dir.rglob("*")))

    def test_names_are_written_as_the_shell_takes_them(self):
        for folder, written in (("my net", "'my net'"), ("it's", "'it'\\''s'"), ("-net", "./-net"), ("$HOME", "'$HOME'")):
            r = self.run("new", "model", "net", f"--dir={folder}")
            self.equal((r.code, f"    cd {written} && make check" in r.out), (0, True), r)

    def test_standard_output_that_is_full_leaves_no_folder(self):
        if not pathlib.Path("/dev/full").exists():
            raise Skip("no /dev/full")
        with open("/dev/full", "w") as full:
            r = self.finish(self.spawn([ENGINE, "new", "model", "net"], stdout=full))
        self.fails(r, 1, "cannot write to standard output: No space left on device")
        self.check(not (self.dir / "net").exists(), list(self.dir.rglob("*")))

    # ---- docs --------------------------------------------------------------------------------------------------------
    def test_pages_show_what_new_writes(self):
        for kind in KINDS:
            page = (SRC / f"docs/writing-plugins/{kind}.md").read_text()
            self.check(generate.with_example(page, generate.example(ENGINE, kind)) == page,
                       f"docs/writing-plugins/{kind}.md is not what `ddpengine new {kind} mine` writes; docs/generate.py makes it so")

    def test_the_list_of_plugins_is_that_of_their_tables(self):
        page = (SRC / "docs/plugins.md").read_text()
        os.environ.pop("DDPENGINE_PLUGIN_PATH", None)
        self.check(generate.plugins(ENGINE, page) == page, "docs/plugins.md differs from the plugins' tables; docs/generate.py makes it so")
        folders = {(p.parent.parent.name, p.parent.name.replace("_", "-")) for p in SRC.glob("plugins/*/*/local.mk")}
        single = {(p.parent.name[:-1], p.stem) for p in [*SRC.glob("models/*.c"), *SRC.glob("samplers/*.c")]}
        self.equal(set(generate.sections_of(page)), {f for f in folders if f[1] != "common"} | single)


if __name__ == "__main__":
    sys.exit(harness.main(Kit))
