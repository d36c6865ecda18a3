"""`--check`: what would be in the way of a run is found before it. Each case plants one thing, and asks that it is found, named
with what to do about it, and gives the exit code that the run would end with."""
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness
from harness import BUILD, SRC, Case, Skip, until

TWO = {"group": {"world_size": 2, "rank": 0, "backend": "gloo-tcp"}}
HUGE = {"model.mlp": {"hidden": "400000, 400000"}, "checkpoint": {"dir": "ck", "every": 10, "keep": 2}}


class Checked(Case):
    def checked(self, *layers, args=(), code=0, name="x.ini", **more):
        """The lines by what they are about: {"port": ["problem 127.0.0.1:..."]}."""
        limits = more.pop("limits", None)
        p = self.spawn([harness.ENGINE, "-c", self.ini(name, *layers), "--check", *args], more.pop("env", None),
                       **({"preexec_fn": limits} if limits else {}))
        r = self.finish(p)
        self.equal(r.code, code, r)
        lines = {}
        for line in r.out.split("\nchecks ")[-1].splitlines():
            if match := re.fullmatch(r"  (ok|warning|problem) +(\S+(?: \S+)?)  +(.*)", line):
                lines.setdefault(match[2], []).append(f"{match[1]} {match[3]}")
        self.equal(len(r.errors()), 1 if code else 0, r)
        self.last = r
        return lines

    def found(self, lines, what, level, *parts):
        """A line of that level has all parts; nothing else is a problem."""
        self.check(any(line.startswith(level) and all(str(p) in line for p in parts) for line in lines.get(what, [])),
                   f"no {level} {what} {parts} in\n{self.last}")
        others = [line for key, all_of in lines.items() for line in all_of if key != what and line.startswith("problem")]
        self.equal(others, [], self.last)

    def at(self, url):
        return {"group": {"init_method": url}}


class Preflight(Checked):
    # ---- nothing is planted ----------------------------------------------------------------------------------------
    def test_nothing(self):
        out = {"output": {"dir": self.dir / "out"}, "checkpoint": {"dir": self.dir / "out/checkpoints", "every": 10}}
        lines = self.checked(TWO, self.at(f"tcp://127.0.0.1:{harness.free_port()}"), out)
        levels = {line.split()[0] for all_of in lines.values() for line in all_of if not line.startswith("warning") or
                  os.cpu_count() > 1}
        self.equal(levels, {"ok"}, self.last)
        for what in ("plugins", "data", "CPU", "output", "checkpoint", "disk", "memory", "processors", "open files", "ranks", "port"):
            self.check(what in lines, f"no {what}: {lines}")
        self.check(re.search(r"^checks +\d+ ok, 0 warnings, 0 problems$", self.last.out, re.M), self.last)
        self.check(not (self.dir / "out").exists(), "it has made the folder")

    def test_an_example(self):
        if not harness.FASHION.exists() or (os.cpu_count() or 1) < 2:
            raise Skip("no Fashion-MNIST, or one processor")
        r = self.run("-c", SRC / "conf/quickstart.ini", "--check", "--nproc", 2)
        self.equal(r.code, 0, r)
        lines = r.out.split("\nchecks ")[1].splitlines()[1:]
        self.check(len(lines) >= 10 and all(line.startswith("  ok ") for line in lines), r)

    # ---- plugins, data, device -------------------------------------------------------------------------------------
    def test_missing_library(self):
        """backend mpi as on a host without MPI."""
        if not (BUILD / ".libs/backend_mpi.so").exists():
            raise Skip("backend mpi is not built")
        (self.dir / "plugins").mkdir()
        binary = (BUILD / ".libs/backend_mpi.so").read_bytes()
        library = re.search(rb"lib(mpi|mpich)\.so\.\d+\0", binary)
        self.check(library, "another MPI")
        absent = library[0].replace(b"libm", b"libn")
        (self.dir / "plugins/backend_mpi.so").write_bytes(binary.replace(library[0], absent))
        lines = self.checked({"group": {"backend": "mpi"}, "plugins": {"path": self.dir / "plugins"}}, code=3)
        self.found(lines, "plugin", "problem", "backend_mpi.so", absent[:-1].decode(),
                   "Debian package openmpi-bin" if library[1] == b"mpi" else "Debian package mpich")

    def test_missing_plugin(self):
        self.found(self.checked({"model": {"plugin": "mlpp"}}, code=3), "plugin", "problem", 'model "mlpp"', 'Did you mean "mlp"?')

    def test_missing_device(self):
        lines = self.checked({"train": {"device": "rocm"}}, code=3)
        self.found(lines, "plugin", "problem", 'device "rocm"', "no such plugin", 'There is "cpu"')

    def test_missing_data(self):
        lines = self.checked({"data": {"plugin": "idx"}, "data.idx": {"images": "nowhere/train", "labels": "nowhere/labels"}}, code=10)
        self.found(lines, "data", "problem", "nowhere/train", "No such file")

    def test_missing_launcher(self):
        if not (BUILD / ".libs/backend_mpi.so").exists():
            raise Skip("backend mpi is not built")
        lines = self.checked({"group": {"backend": "mpi"}}, args=["--nproc", 2], code=3, env={"PATH": "/nowhere"})
        self.found(lines, "launcher", "problem", "mpirun", "backend mpi", "not on the PATH", "install Debian package openmpi-bin")

    def test_all_checks_run(self):
        """Three mistakes, any of which keeps the run from starting: one look shows all of them."""
        lines = self.checked({"model": {"plugin": "mlpp"}, "group": {"backend": "glop"}, "output": {"dir": "/proc/x"}}, code=3)
        self.equal(len(lines["plugin"]), 2, self.last)
        self.check("problem" in lines["output"][0] and "open files" in lines, self.last)

    def test_slow_bf16(self):
        have = harness.has_bf16()
        lines = self.checked({"train": {"precision": "bf16"}})
        self.found(lines, "CPU", "ok" if have else "warning", "bf16")
        if not have:
            self.check("multiplies bf16 no faster than f32" in lines["CPU"][0], self.last)

    # ---- files -----------------------------------------------------------------------------------------------------
    def test_output_cannot_be_written(self):
        lines = self.checked({"output": {"dir": "/proc/run"}}, code=2)
        self.found(lines, "output", "problem", "[output] dir = /proc/run", "cannot write into /proc", "write access")

    def test_file_in_the_way_of_checkpoints(self):
        (self.dir / "file").write_text("")
        lines = self.checked({"checkpoint": {"dir": self.dir / "file/ck", "every": 10}}, code=8)
        self.found(lines, "checkpoint", "problem", "[checkpoint] dir", "file is not a folder", "name another folder")

    def test_disk_too_small(self):
        lines = self.checked(HUGE, code=8)
        lines.pop("memory")
        self.found(lines, "disk", "problem", " left, 3 checkpoints of ", "GiB", "lower [checkpoint] keep")

    # ---- this host -------------------------------------------------------------------------------------------------
    def test_memory_too_small(self):
        lines = self.checked(HUGE, {"checkpoint": None}, code=1)
        self.found(lines, "memory", "problem", "the plan needs", "GiB", "lower [train] batch_size")

    def test_limit_of_memory(self):
        """ulimit -v is what a process may have."""
        if harness.SANITIZED:
            raise Skip("a sanitizer needs more address space than that")
        wide = {"model.mlp": {"hidden": "60000, 40000"}}
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        self.found(self.checked(wide, code=1, limits=limit), "memory", "problem", "the plan needs", "8 GiB (ulimit -v)")

    def test_more_threads_than_processors(self):
        lines = self.checked({"train": {"threads": 64}}, args=["--nproc", 2])
        self.found(lines, "processors", "warning", "2 ranks x 64 threads", "set [train] threads = ")

    # ---- what it starts with ---------------------------------------------------------------------------------------
    def test_checkpoint_of_another_model(self):
        here, wider = {"checkpoint": {"dir": self.dir / "ck"}}, {"model.mlp": {"hidden": "9"}}
        self.equal(self.train(here).code, 0)
        lines = self.checked(here)
        self.check(re.search(r"^ok goes on from \S+/ck/step-0*(\d+), step \1$", lines["start"][0]), lines)
        before = sorted(self.dir.rglob("*"))
        lines = self.checked(here, wider, code=8)
        self.found(lines, "start", "problem", "is of another model: ", "fc1.weight is f32", "resume = never")
        self.equal(set(self.dir.rglob("*")) - set(before), set())
        r = self.run("-c", self.dir / "x.ini")
        self.fails(r, 8, "is of another model: ", "fc1.weight")
        lines = self.checked(here, wider, {"checkpoint": {"resume": "never"}})
        self.check("start" not in lines, lines)

    def test_init_from(self):
        source, wider = {"checkpoint": {"dir": self.dir / "source"}}, {"model.mlp": {"hidden": "9"}}
        self.equal(self.train(source).code, 0)
        path = next((self.dir / "source").glob("step-*"))
        given = {"checkpoint": {"dir": self.dir / "ck", "init_from": path}}
        self.equal(self.checked(given)["start"], [f"ok the parameters of {path} fit the model"])
        for layers, parts in (((given, wider), ("is not of this model: ", "of another shape or dtype (fc1.weight", "there, ")),
                              (({"checkpoint": {"init_from": self.dir / "none"}},), ("[checkpoint] init_from", f"{self.dir}/none")),
                              (({"checkpoint": {"init_from": self.dir / "source"}},), ("holds no model.safetensors", "/step-"))):
            self.found(self.checked(*layers, code=8), "start", "problem", *parts)
            r = self.run("-c", self.dir / "x.ini")
            self.fails(r, 8, *parts)
        for name, value in (("lora.rank", 4), ("lora.init_from", self.dir / "adapter")):
            given = {**given, "lora": {**given.get("lora", {}), name.split(".")[1]: value}}
        self.found(self.checked(given, code=8), "start", "problem", "[lora] init_from", f"{self.dir}/adapter")

    def test_files_of_another_user(self):
        out = self.dir / "out"
        out.mkdir()
        config = {"output": {"dir": out}, "checkpoint": None}
        (out / "ranks.jsonl").mkdir()
        self.found(self.checked(config, code=2), "output", "problem", f"{out}/ranks.jsonl cannot be written: Is a directory", "[output] dir")
        (out / "ranks.jsonl").rmdir()
        if os.geteuid() != 0:
            raise Skip("not root: no other user")
        (out / "metrics.jsonl").write_text("")
        os.chmod(out, 0o777)
        for folder in (self.dir, *self.dir.parents, *BUILD.parents):
            if folder.stat().st_mode & 1 == 0:
                if folder != self.dir:
                    raise Skip(f"other users cannot search {folder}")
                os.chmod(folder, 0o755)
        lines = self.checked(config, code=2, limits=lambda: os.setuid(65534))
        self.found(lines, "output", "problem", f"{out}/metrics.jsonl cannot be written: Permission denied", "write access")
        r = self.finish(self.spawn([harness.ENGINE, "-c", self.dir / "x.ini"], preexec_fn=lambda: os.setuid(65534)))
        self.fails(r, 2, f"{out}/metrics.jsonl", "Permission denied")

    def test_too_few_open_files(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
        many = {"group": {"world_size": 40, "rank": 0, "init_method": f"tcp://127.0.0.1:{harness.free_port()}", "backend": "gloo-tcp"}}
        lines = self.checked(many, code=1, limits=limit)
        self.found(lines, "open files", "problem", "ulimit -n is 80", "40 ranks need 144", "run ulimit -n 144", "limits.conf")

    def test_too_few_open_files_for_any_run(self):
        """The run itself ends at once with that exit code; here the other lines follow."""
        limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (63, 63))
        lines = self.checked(code=1, limits=limit)
        self.found(lines, "open files", "problem", "ulimit -n is 63", "1 rank needs 66", "run ulimit -n 66")
        self.check({"plugins", "data", "memory", "processors"} <= set(lines), self.last)

    def test_shared_memory_too_small(self):
        """Of backend shm, which needs no /dev/shm, but files of its size."""
        wide = {"model.mlp": {"hidden": "4000, 4000"}, "group": {"backend": "shm"}}
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        lines = self.checked(wide, args=["--nproc", 2], code=3, limits=limit)
        self.found(lines, "shared memory", "problem", "MiB of shared memory", "ulimit -f", "use gloo-tcp")

    def test_dev_shm_too_small(self):
        """Of backend mpi: its segments lie in a file system of 1 MiB, as Docker's of 64 MiB is for many ranks."""
        if os.geteuid() != 0 or not (BUILD / ".libs/backend_mpi.so").exists() or not shutil.which("mpirun"):
            raise Skip("not root, or no MPI")
        small = self.dir / "small"
        small.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(small)], capture_output=True, check=False).returncode != 0:
            raise Skip("cannot mount")
        try:
            lines = self.checked({"group": {"backend": "mpi"}}, args=["--nproc", 2], code=3,
                                 env={"OMPI_MCA_btl_sm_backing_directory": str(small)})
        finally:
            subprocess.run(["umount", str(small)], check=True)
        self.found(lines, "shared memory", "problem", "small has 1 MiB left",
                   "Open MPI needs", "for 2 ranks", "--shm-size")


class Rendezvous(Checked):
    def test_port_in_use(self):
        with socket.create_server(("127.0.0.1", harness.free_port())) as s:
            port = s.getsockname()[1]
            lines = self.checked(TWO, self.at(f"tcp://127.0.0.1:{port}"), code=4)
        self.found(lines, "port", "problem", f"127.0.0.1:{port} is in use by python", f"(pid {os.getpid()})", "another port")

    def test_address_of_another_host(self):
        lines = self.checked(TWO, {"group": {"init_method": "tcp://192.0.2.99:29500", "auth": "none"}}, code=4)
        self.found(lines, "port", "problem", "192.0.2.99:29500", "not an address of this host", "correct init_method or rank")

    def test_unknown_host(self):
        lines = self.checked(TWO, {"group": {"rank": 1, "init_method": "tcp://no-such-host.invalid:29500"}}, code=4)
        self.found(lines, "rank 0", "problem", "no-such-host.invalid", "/etc/hosts")

    def test_missing_interface(self):
        lines = self.checked(TWO, {"group": {"interface": "eth77"}}, self.at("tcp://127.0.0.1:29500"), code=2)
        self.found(lines, "config", "problem", "x.ini", 'no network interface "eth77"', "it has lo")

    def test_some_ranks_of_loopback_are_not_started(self):
        four = {"group": {"world_size": 4, "backend": "gloo-tcp", "init_method": f"tcp://127.0.0.1:{harness.free_port()}"}}
        lines = self.checked(four, args=["--nproc", 2])
        self.found(lines, "ranks", "warning", "--nproc starts 2 of world_size = 4", "start all with --nproc 4")

    def test_environment_without_rank(self):
        lines = self.checked({"group": {"world_size": 2}}, self.at("env://"), code=2)
        self.found(lines, "ranks", "problem", "the environment has no rank", "Export RANK and WORLD_SIZE")

    def test_environment_of_another_world(self):
        env = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
        lines = self.checked({"group": {"world_size": 2}}, self.at("env://"), code=2, env=env)
        self.found(lines, "ranks", "problem", "world_size = 2", "WORLD_SIZE=4", "remove the line, or start that many ranks")

    def test_environment_without_address(self):
        env = {"RANK": "0", "WORLD_SIZE": "2"}
        lines = self.checked({"group": {"backend": "gloo-tcp"}}, self.at("env://"), code=2, env=env)
        self.found(lines, "config", "problem", "MASTER_ADDR is not set", "export MASTER_ADDR and MASTER_PORT")

    def test_file_of_a_dead_run(self):
        path = self.dir / "run1"
        p = self.start("-c", self.ini("dead.ini", TWO, self.at(f"file://{path}"), {"init.file": {"listen": "127.0.0.1"}}))
        until(path.exists, "no file")
        p.kill()
        p.wait()
        lines = self.checked(TWO, self.at(f"file://{path}"), {"init.file": {"listen": "127.0.0.1"}})
        self.found(lines, "init_method", "warning", path, "left by a run that has died", f"pid {p.pid}", "rm it")
        self.check(path.exists(), "removed")

    def test_file_of_a_live_run(self):
        path = self.dir / "run1"
        p = self.start("-c", self.ini("live.ini", TWO, self.at(f"file://{path}"), {"init.file": {"listen": "127.0.0.1"}}))
        until(path.exists, "no file")
        lines = self.checked(TWO, self.at(f"file://{path}"), {"init.file": {"listen": "127.0.0.1"}}, code=4)
        self.found(lines, "init_method", "problem", "in use by a run", f"pid {p.pid}", "another file")
        p.send_signal(signal.SIGTERM)

    def test_folder_of_the_file_is_missing(self):
        lines = self.checked(TWO, self.at("file:///proc/nowhere/run1"), {"init.file": {"listen": "127.0.0.1"}}, code=4)
        self.found(lines, "init_method", "problem", "/proc/nowhere/", "a folder that all hosts share")

    def test_folder_of_the_file_is_not_shared(self):
        path = f"/dev/shm/ddpengine-test-{os.getpid()}"
        lines = self.checked(TWO, self.at(f"file://{path}"))
        self.found(lines, "init_method", "warning", "/dev/shm/", "of this host alone", "or use tcp://")

    def test_secret_that_others_can_read(self):
        secret = self.dir / "secret"
        self.equal(self.run("--gen-secret", secret).code, 0)
        secret.chmod(0o644)
        lines = self.checked(TWO, {"group": {"secret_file": secret}}, self.at("tcp://127.0.0.1:29500"), code=2)
        lines.pop("port", None)
        self.found(lines, "secret", "problem", secret, "chmod 600")

    def test_no_secret_beyond_loopback(self):
        lines = self.checked(TWO, self.at("tcp://192.0.2.99:29500"), code=2)
        lines.pop("port")
        self.found(lines, "secret", "problem", "192.0.2.99:29500", "--gen-secret FILE", "auth = none")


if __name__ == "__main__":
    sys.exit(harness.main(Preflight, Rendezvous))
