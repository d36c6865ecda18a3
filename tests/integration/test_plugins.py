"""Swapping plugins by one line: what cannot be loaded ends the run with exit 3 and one line, and none of its code has run."""
import os
import shutil
import subprocess
import sys
import tempfile
import pathlib

import harness
from harness import BUILD, SRC, Case, Skip

# A backend with nothing in it but a constructor that leaves a trace; MACROS make it wrong in one way each.
SOURCE = r"""
#include <ddpengine/backend.h>
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void trace(void) { int fd = open(TRACE, O_CREAT | O_WRONLY, 0600); if (fd >= 0) close(fd); }
#ifndef ABI
#define ABI DDP_ABI
#endif
#ifndef KIND_ABI
#define KIND_ABI DDP_BACKEND_ABI
#endif
#ifndef KIND
#define KIND DDP_KIND_BACKEND
#endif
#ifdef UNDEFINED
extern int nowhere_to_be_found(void);
int use(void); int use(void) { return nowhere_to_be_found(); }
#endif
#ifdef NEEDED
extern int from_the_missing_library(void);
int use(void); int use(void) { return from_the_missing_library(); }
#endif
static const ddp_backend_ops ops = { .struct_size = sizeof(ops), .caps = 0 };
#ifndef NO_SYMBOL
__attribute__((visibility("default"))) const ddp_plugin ddp_plugin_desc = {
    .magic = DDP_MAGIC, .abi = ABI, .struct_size = sizeof(ddp_plugin), .kind = KIND, .kind_abi = KIND_ABI,
    .services = DDP_BACKEND_SERVICES, .reach = DDP_REACH_HOST, .memory = "host", .name = "mine", .version = "1", .summary = "test", .option_size = sizeof(ddp_option), .ops = &ops };
#endif
"""


class Plugins(Case):
    def build(self, *flags, folder="plugins", name="backend_mine.so", after=()):
        where = self.dir / folder
        where.mkdir(exist_ok=True)
        source = self.dir / "mine.c"
        source.write_text(SOURCE)
        self.trace = self.dir / "constructor-ran"
        subprocess.run(["cc", "-shared", "-fPIC", f"-I{SRC}/core/include", f'-DTRACE="{self.trace}"', *flags, str(source), "-o",
                        str(where / name), *after], check=True)
        return where / name

    def refused(self, *parts, folder="plugins", backend="mine", ran=False):
        path = self.ini("x.ini", {"group": {"backend": backend}, "plugins": {"path": self.dir / folder}})
        for args in (("--check",), ("--nproc", 2)):
            r = self.run("-c", path, *args)
            self.fails(r, 3, *parts)
        if not ran:
            self.check(not self.trace.exists(), "the constructor of a refused plugin has run")

    def test_backend_by_path_is_reported_by_name(self):
        r = self.train({"group": {"backend": harness.BUILD / ".libs/backend_gloo_tcp.so"}, "train": {"max_steps": 2}})
        self.equal(r.summary["backend"], "gloo-tcp")
        self.equal(self.metrics(r.dir, "start")[0]["backend"], "gloo-tcp")

    def test_unknown_backend(self):
        self.trace = self.dir / "no"
        self.refused("gloo-tpc", "gloo-tcp", backend="gloo-tpc")

    def test_missing_file_by_path(self):
        self.trace = self.dir / "no"
        self.refused(self.dir / "none.so", backend=str(self.dir / "none.so"))

    def test_not_a_plugin(self):
        self.build("-DNO_SYMBOL")
        self.refused("backend_mine.so", "ddp_plugin_desc")

    def test_not_an_object(self):
        self.build()
        (self.dir / "plugins/backend_mine.so").write_text("#!/bin/sh\n")
        self.refused("backend_mine.so", "ELF")

    def test_wrong_numbers(self):
        self.build("-DABI=7")
        self.refused("backend_mine.so", "ABI 7")
        self.build("-DKIND_ABI=9")
        self.refused("backend_mine.so", "backend ABI 9")
        self.build("-DKIND=DDP_KIND_MODEL")
        self.refused("backend_mine.so", "model")

    def test_missing_library(self):
        lib = self.dir / "libmissing-here.so"
        (self.dir / "lib.c").write_text("int from_the_missing_library(void) { return 1; }")
        subprocess.run(["cc", "-shared", "-fPIC", str(self.dir / "lib.c"), "-o", str(lib)], check=True)
        self.build("-DNEEDED", after=(str(lib),))
        lib.unlink()
        self.refused("backend_mine.so", "libmissing-here.so")

    def test_undefined_symbol(self):
        self.build("-DUNDEFINED")
        self.refused("backend_mine.so", "nowhere_to_be_found")

    def test_world_writable_folder(self):
        self.build()
        (self.dir / "plugins").chmod(0o777)
        self.refused("plugins", "writable")

    def test_deprecated_option_is_warned_of_once(self):
        """A sampler whose one option is an old name."""
        table = ('static const ddp_option options[] = {{"old", "3", NULL, "Use new.", DDP_OPT_INT, DDP_OPT_F_DEPRECATED, '
                 'offsetof(struct config, unused)}};\nDDP_PLUGIN_EXPORT')
        table = "struct config { int64_t unused; };\n" + table
        source = (SRC / "samplers/sequential.c").read_text()
        for old, new in (("DDP_PLUGIN_EXPORT", table), ('"sequential"', '"older"'),
                         ("DDP_NO_OPTIONS", "DDP_OPTIONS(options, struct config)")):
            self.check(old in source, old)
            source = source.replace(old, new)
        (self.dir / "older.c").write_text("#include <stddef.h>\n" + source)
        (self.dir / "plugins").mkdir()
        subprocess.run(["cc", "-shared", "-fPIC", f"-I{SRC}/core/include", str(self.dir / "older.c"), "-o",
                        str(self.dir / "plugins/sampler_older.so")], check=True)
        for given in (True, False):
            path = self.ini("x.ini", {"plugins": {"path": self.dir / "plugins"}, "sampler": {"plugin": "older"}},
                            {"sampler.older": {"old": 4}} if given else {})
            for args in (("--check",), ("--nproc", 2), ("--print-config",)):
                r = self.run("-c", path, *args)
                self.equal(r.code, 0, r)
                warnings = [line for line in r.err.splitlines() if "warning: " in line]
                self.equal(len(warnings), 1 if given else 0, r)
                self.check(all("x.ini:" in w and "[sampler.older] old is deprecated: Use new." in w for w in warnings), r)

    def test_plugin_that_fails_without_a_reason(self):
        """A status without ddp_fail() is a failure all the same, not a crash."""
        (self.dir / "plugins").mkdir()
        source = self.dir / "mute.c"
        source.write_text('#include <ddpengine/model.h>\n'
                          'static ddp_status build(ddp_graph *g, const void *config, ddp_err *err)'
                          '{ (void)g; (void)config; (void)err; return DDP_ERR_CONFIG; }\n'
                          'static const ddp_model_ops ops = {.struct_size = sizeof(ops), .build = build};\n'
                          'DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = { DDP_PLUGIN_HEAD(MODEL, 0), '
                          'DDP_PLUGIN_TAIL("mute", "1", "s", DDP_NO_OPTIONS, ops) };\n')
        subprocess.run(["cc", "-shared", "-fPIC", f"-I{SRC}/core/include", str(source), "-o",
                        str(self.dir / "plugins/model_mute.so")], check=True)
        path = self.ini("x.ini", {"model": {"plugin": "mute"}, "plugins": {"path": self.dir / "plugins"}})
        for args in (("--check",), ("--nproc", 2)):
            self.fails(self.run("-c", path, *args), 2, 'model "mute"', "without giving a reason")

    def vendor(self):
        """A device with a memory kind of its own and a backend that reduces it, built from the public headers alone."""
        where, here = self.dir / "acme", SRC / "tests/fixtures/vendor"
        where.mkdir()
        for name, more in (("device_acme", ()), ("backend_acmelink", (f"-I{SRC}/docs/examples/backend-skeleton",))):
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-D_GNU_SOURCE", f"-I{SRC}/core/include", *more, str(here / f"{name}.c"),
                            "-o", str(where / f"{name}.so")], check=True)
        return {"plugins": {"path": where}}, {"device.acme": {"cpu": BUILD / ".libs/device_cpu.so"}}

    def test_made_up_vendor_trains(self):
        """`auto` finds both by what they state; the parameters are those of the CPU's, whichever way gradients take."""
        path, device = self.vendor()
        clip = {"train": {"max_steps": 12}, "optimizer": {"algorithm": "adamw", "momentum": None, "clip_norm": 0.5}}
        for layers in ({"train": {"max_steps": 12}}, clip):
            want = self.train(layers, nproc=2, name="cpu.ini").summary
            for given, backend in (({"group": {"backend": "auto"}}, "acmelink"), ({"group": {"backend": "shm"}}, "shm"),
                                   ({"group": {"backend": "acmelink"}, "ddp": {"shard_update": "no"}}, "acmelink")):
                r = self.train(layers, path, device, {"train": {"device": "auto"}}, given, nproc=2, name=f"{backend}.ini")
                self.equal(r.summary["backend"], backend)
                self.equal(r.summary["device"], "acme:0")
                self.check("device = auto: acme" in r.err, r)
                self.equal(r.summary["parameter_sha256"], want["parameter_sha256"], r)

    def test_made_up_vendor_is_matched_by_memory(self):
        path, device = self.vendor()
        for given, parts in (({"group": {"backend": "acmelink"}}, ('backend "acmelink"', "host memory")),
                             ({"train": {"device": "acme:1"}, "plugins": {"path": self.dir}}, ('device "acme"', "no such plugin"))):
            self.fails(self.run("-c", self.ini("x.ini", path, device, given), "--nproc", 2), 3, *parts)
        (self.dir / "acme/backend_acmelink.so").unlink()
        r = self.run("-c", self.ini("x.ini", path, device, {"train": {"device": "acme"}, "group": {"backend": "auto"}}), "--nproc", 2)
        self.fails(r, 3, 'memory of kind "acme"', "ddpengine plugins")
        r = self.run("-c", self.ini("x.ini", path, device, {"train": {"device": "acme"}}), "--check")
        self.equal(r.code, 0, r)
        self.check("backend shm" in r.out, r)

    def test_clone_under_tmp_and_another_users_checkout(self):
        """The build tree itself, copied below /tmp; then, as root, owned by somebody else."""
        if not str(BUILD).startswith("/"):
            raise Skip("no build tree")
        clone = pathlib.Path(tempfile.mkdtemp(prefix="ddpengine-clone-", dir="/tmp"))
        try:
            (clone / ".libs").mkdir()
            shutil.copy(BUILD / "ddpengine", clone)
            shutil.copy(BUILD / "config.status", clone)
            for so in (BUILD / ".libs").glob("*.so"):
                shutil.copy(so, clone / ".libs")
            self.clone_trains(clone)
            if os.geteuid() == 0:
                for p in [clone, *clone.rglob("*")]:
                    os.chown(p, 65534, 65534)
                self.clone_trains(clone)
        finally:
            shutil.rmtree(clone)

    def test_bundle_has_its_plugins_beside_the_program(self):
        """lib/ddpengine beside the program, as conf/packaging/bundle makes it; it comes before the installation's folder."""
        bundle = self.dir / "a bundle"
        (bundle / "lib/ddpengine").mkdir(parents=True)
        shutil.copy(BUILD / "ddpengine", bundle)
        for so in (BUILD / ".libs").glob("*.so"):
            shutil.copy(so, bundle / "lib/ddpengine")
        self.clone_trains(bundle)
        (bundle / "lib/ddpengine/device_cpu.so").unlink()
        r = subprocess.run([str(bundle / "ddpengine"), "-c", str(self.ini("x.ini"))], capture_output=True, text=True, timeout=harness.PATIENCE)
        self.equal(r.returncode, 3, r.stderr)
        self.check(f"{bundle}/lib/ddpengine (the bundle)" in r.stderr, r.stderr)

    def test_a_library_of_the_compiler_is_named_by_its_package(self):
        """Whichever package the plugin names: its own may not be there at all, as in a bundle."""
        lib = self.dir / "libgomp.so.99"
        (self.dir / "lib.c").write_text("int from_the_missing_library(void) { return 1; }")
        subprocess.run(["cc", "-shared", "-fPIC", f"-Wl,-soname,{lib.name}", str(self.dir / "lib.c"), "-o", str(lib)], check=True)
        self.build("-DNEEDED", after=(str(lib),))
        lib.unlink()
        self.refused("backend_mine.so needs the library libgomp.so.99", "Install the Debian package libgomp1")

    def clone_trains(self, clone):
        r = subprocess.run([str(clone / "ddpengine"), "-c", str(self.ini("x.ini")), "--nproc", "2"], capture_output=True,
                           text=True, timeout=harness.PATIENCE)
        self.equal(r.returncode, 0, r.stderr)


if __name__ == "__main__":
    sys.exit(harness.main(Plugins))
