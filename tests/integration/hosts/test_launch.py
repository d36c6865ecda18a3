"""ddpengine launch: a real sshd at two loopback addresses, which are the two hosts, with keys of its own in the case's folder."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import harness  # noqa: E402
from harness import Case, Skip, children_of, free_port, seldom, state_of, until  # noqa: E402
from ssh import Ssh  # noqa: E402

LONG = {"train": {"epochs": 1000000}, "output": {"log_every": 200}}
HOSTS = "127.0.0.1:2,127.0.0.2:1"


class Launch(Case):
    def sshd(self):
        """Starts it; the --ssh that reaches it."""
        self.server = Ssh(self)
        self.server.listen(["127.0.0.1", "127.0.0.2"])
        return "ssh " + self.server.options()

    def same_code(self):
        """The variables by which the tests' programs choose their kernels, which ssh does not take along."""
        return [word for name, value in self.environ.items() for word in ("--env", f"{name}={os.environ.get(name, value)}")]

    def nothing_left(self):
        """No process works in the case's folder but sshd, which does not."""
        def left():
            found = []
            for entry in pathlib.Path("/proc").iterdir():
                if entry.name.isdigit() and state_of(entry.name):
                    try:
                        if os.readlink(entry / "cwd").startswith(str(self.dir)) and b"ddpengine" in (entry / "cmdline").read_bytes():
                            found.append((entry / "cmdline").read_bytes())
                    except OSError:
                        continue
            return found
        until(lambda: not left(), lambda: f"left behind: {left()}")

    def begin(self, *more, **options):
        """Starts a long run on both hosts; once it trains, the process."""
        ssh = self.sshd()
        self.path = self.ini("long.ini", LONG, {"output": {"dir": self.dir / "out"}}, *more)
        p = self.start("launch", "--hosts", HOSTS, "-c", self.path, "--ssh", ssh, *options.get("args", ()))
        self.trained_a_while(p)
        return p

    def ranks(self):
        """The processes of this run that have no child: command line, environment and descriptors of each."""
        out = {}
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if str(self.path) in words and "launch" not in words and not children_of(int(entry.name)):
                    out[int(entry.name)] = words
            except OSError:
                continue
        return out

    def test_trains_as_on_one_host(self):
        """The bits of the same ranks of one host; lines have their host in front; the hosts need not have the INI's folder as theirs."""
        ssh = self.sshd()
        whole = self.train(nproc=3)
        path = self.ini("run.ini", {"output": {"dir": "there", "log_every": 1000}})
        elsewhere = self.dir / "elsewhere"
        elsewhere.mkdir()
        r = self.run("launch", "--hosts", HOSTS, "-c", path, "--ssh", ssh, "--chdir", elsewhere, "--set", "train.momentum_of_none=1")
        self.fails(r, 2, "momentum_of_none")  # before any host is asked
        r = self.run("launch", "--hosts", HOSTS, "-c", path, "--ssh", ssh, "--chdir", elsewhere, *self.same_code())
        self.equal(r.code, 0, r)
        self.check("127.0.0.1: ddpengine[0]: training mlp" in r.err and "with 3 ranks" in r.err, r)
        summary = (elsewhere / "there" / "summary.json").read_text()
        self.check(whole.summary["parameter_sha256"] in summary, summary)
        nodes = self.ini("nodes.ini", {"output": {"dir": "nodes"}, "group": {"nodes": HOSTS.replace(",", ", ")}})
        r = self.run("launch", "-c", nodes, "--ssh", ssh, *self.same_code())
        self.equal(r.code, 0, r)
        self.check(whole.summary["parameter_sha256"] in (self.dir / "nodes" / "summary.json").read_text(), r)
        self.nothing_left()

    @seldom
    def test_secret_and_environment(self):
        """The secret is in memory that has no name: on no command line and in no variable. --env reaches the ranks."""
        ssh = self.sshd()
        self.path = self.ini("long.ini", LONG, {"output": {"dir": self.dir / "out"}})
        p = self.start("launch", "--hosts", HOSTS, "-c", self.path, "--ssh", ssh, "--env", "DDP_TEST_A=two words", "--env", "DDP_TEST_B",
                       env={"DDP_TEST_B": "from here"})
        self.trained_a_while(p)
        ranks = until(lambda: len(found := self.ranks()) == 3 and found, lambda: self.ranks())
        for pid, words in ranks.items():
            variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            self.check(b"DDP_TEST_A=two words" in variables and b"DDP_TEST_B=from here" in variables, variables)
            files = {os.readlink(f) for f in pathlib.Path(f"/proc/{pid}/fd").iterdir()}
            self.check(any("ddpengine secret" in f for f in files), files)
            number = next(f for f in os.listdir(f"/proc/{pid}/fd") if "ddpengine secret" in os.readlink(f"/proc/{pid}/fd/{f}"))
            flags = int(re.search(r"flags:\s*(\d+)", pathlib.Path(f"/proc/{pid}/fdinfo/{number}").read_text())[1], 8)
            self.check(flags & os.O_CLOEXEC, "what a rank starts inherits the secret")
            secret = pathlib.Path(f"/proc/{pid}/fd/{number}").read_text().strip()
            self.equal(len(secret), 64)
            self.check(not any(secret in w for w in words) and not any(secret.encode() in v for v in variables), words)
            self.check(any(w.startswith("group.secret_file=/proc/self/fd/") for w in words), words)
        p.send_signal(signal.SIGINT)
        self.finish(p)

    def test_first_failure_ends_all(self):
        p = self.begin()
        victim = next(pid for pid, words in self.ranks().items() if "--supervise" in words)  # the one rank of the second host
        os.kill(victim, signal.SIGKILL)
        r = self.finish(p)
        self.equal(r.code, 5, r)
        self.check("127.0.0.2: ddpengine" in r.err and "was killed by signal 9" in r.err, r)
        self.check("127.0.0.1: ddpengine" in r.err and "rank 2 on host" in r.err, r)
        self.nothing_left()

    @seldom
    def test_interrupt_ends_all(self):
        p = self.begin()
        p.send_signal(signal.SIGINT)
        r = self.finish(p)
        self.equal(r.code, 130, r)
        self.check("127.0.0.1: ddpengine" in r.err, r)
        self.nothing_left()

    def test_killed_launcher_leaves_nothing_behind(self):
        p = self.begin()
        p.kill()
        p.wait()
        self.nothing_left()

    def test_lost_connection(self):
        """The ssh of one host is killed: its ranks end there, and the others with them."""
        p = self.begin()
        for pid in children_of(p.pid):
            if "127.0.0.2" in pathlib.Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)
        r = self.finish(p)
        self.check(r.code in (5, 143), r)
        self.check("the connection to host 127.0.0.2 is lost" in r.err, r)
        self.nothing_left()

    def stands_for_ssh(self, name, text):
        """A script that does `text` for ssh; `last` is what is to be run there."""
        path = self.dir / name
        path.write_text('#!/bin/sh\nfor last; do :; done\n' + text)
        path.chmod(0o755)
        return path

    def test_host_that_does_not_answer(self):
        """It is named, and given up after rendezvous_timeout; Ctrl-C before that ends with the code of the signal."""
        path = self.ini("run.ini")
        silent = self.stands_for_ssh("silent", "echo 'Password?' >&2\nexec sleep 600\n")
        r = self.run("launch", "--hosts", "a:1,b:1", "-c", path, "--ssh", silent, "--set", "group.rendezvous_timeout=2s")
        self.equal(r.code, 4, r)
        self.check("waiting for 2 of 2 hosts to answer, host a first: Password?" in r.err, r)
        for host in "ab":
            self.check(f"host {host} has not answered for 2 s" in r.err and "rendezvous_timeout): Password?" in r.err, r)
        node = self.stands_for_ssh("first", 'case "$*" in *" a exec"*) exec sleep 600 ;; esac\nexec sh -c "$last"\n')
        started = [self.start("launch", "--hosts", "a:1,b:1", "-c", path, "--ssh", ssh, "--set", "group.rendezvous_timeout=4s")
                   for ssh in (silent, node)]  # of the second one host answers, and waits for what to run
        for p in started:
            self.check("waiting for" in p.stderr.readline(), "no line")
            p.send_signal(signal.SIGINT)
            r = self.finish(p)
            self.equal(r.code, 130, r)
            self.check("error" not in r.err, r)
        self.nothing_left()

    def test_login_that_writes(self):
        """Text of a login script without a newline stands in front of the node's answer; a NUL byte ends no line."""
        path = self.ini("run.ini", {"output": {"dir": self.dir / "out"}})
        ssh = self.stands_for_ssh("greets", "printf 'welcome '\nsh -c \"$last\" && printf 'a\\000b\\nlast\\n'\n")
        r = self.run("launch", "--hosts", "127.0.0.1:1", "-c", path, "--ssh", ssh)
        self.equal(r.code, 0, r)
        self.check("127.0.0.1: a b\n127.0.0.1: last\n" in r.out, r)

    @seldom
    def test_what_is_wrong_is_one_line(self):
        ssh = self.sshd()
        path = self.ini("run.ini")
        old = self.dir / "old"
        old.write_text("#!/bin/sh\necho ddpengine-launch-1 0.0.9 1234\nsleep 1\n")
        old.chmod(0o755)
        older = self.dir / "older"
        older.write_text("#!/bin/sh\necho 'unknown command launch' >&2\nexit 2\n")
        older.chmod(0o755)
        wrong = (
            (("--ssh", "/nowhere/ssh"), 4, "cannot run /nowhere/ssh", "openssh-client"),
            (("--ssh", f"ssh -p {free_port()} -F none"), 4, "host 127.0.0.1 is not reached", "Connection refused", "--ssh"),
            (("--ssh", "ssh " + self.server.options("other")), 4, "host 127.0.0.1", "Permission denied", "ssh-copy-id"),
            (("--ssh", "ssh " + self.server.options(hosts="yes")), 4, "Host key verification failed", "connect once by hand"),
            (("--ssh", ssh, "--program", "/nowhere/ddpengine"), 4, "host 127.0.0.1 has no /nowhere/ddpengine", "--program"),
            (("--ssh", ssh, "--program", old), 4, "host 127.0.0.1 has ddpengine 0.0.9, this one", "install the same one"),
            (("--ssh", ssh, "--program", older), 4, "ended with exit code 2", "unknown command launch", "another version"),
            (("--ssh", ssh, "--chdir", "/nowhere"), 2, "127.0.0.1: ddpengine: error: cannot go to the folder /nowhere", "--chdir"),
        )
        for args, code, *texts in wrong:
            r = self.run("launch", "--hosts", "127.0.0.1:2", "-c", path, *args)
            self.equal(r.code, code, r)
            for text in texts:
                self.check(text in r.err, (text, r))
            self.equal(len(r.err.strip().splitlines()), 1, r)
        for hosts in ("a", "a:0", "a:x", "", "a:2,a:3", "-oProxyCommand=x:2", "a b:2", "a:2,", "[-oProxyCommand=x]:2",
                      "[-oProxyCommand=x@[::1]:2", "a@-oProxyCommand=x:2", "a@b@c:2", "[::1%]:2", "[::1:2", "@a:2"):
            r = self.run("launch", "--hosts", hosts, "-c", path, "--ssh", self.dir / "asked")
            self.equal(r.code, 2, (hosts, r))
        for hosts in ("[fe80::1%eth0]:2", "me@[::ffff:10.0.0.1]:2", "me@node_1.here:2"):
            self.fails(self.run("launch", "--hosts", hosts, "-c", path, "--ssh", self.dir / "asked"), 4, "cannot run")
        self.fails(self.run("launch", "-c", path), 2, "no hosts: give --hosts")
        self.fails(self.run("launch", "--hosts", "a:2"), 2, "no config file")
        self.nothing_left()


def ip(*words, check=True):
    return subprocess.run(["ip", *map(str, words)], capture_output=True, text=True, check=check)


class Namespaces(Case):
    """Two hosts with addresses of their own, each with an sshd: network namespaces with a link between them."""

    def close(self):
        super().close()
        for name in getattr(self, "names", ()):
            ip("netns", "del", name, check=False)

    def begin(self):
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise Skip("network namespaces need root and ip (iproute2)")
        self.names = [f"ddplaunch-{os.getpid()}-{c}" for c in "ab"]
        self.server = Ssh(self)
        for name in self.names:
            made = ip("netns", "add", name, check=False)
            if made.returncode:
                raise Skip(f"ip netns: {made.stderr.strip()}")
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", self.names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", self.names[1])
        for i, name in enumerate(self.names):
            ip("-n", name, "addr", "add", f"10.83.7.{i + 1}/24", "dev", "eth0", "nodad")
            ip("-n", name, "link", "set", "eth0", "up")
            self.server.listen([f"10.83.7.{i + 1}"], self.on(i))

    def on(self, i):
        """In front of a command: on that host, which has a name of its own too."""
        return ["ip", "netns", "exec", self.names[i], "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', f"host{i}"]

    @seldom
    def test_launch_between_hosts(self):
        """The address is one that others reach, so without the secret that the launcher hands out no rank could join."""
        self.begin()
        path = self.ini("run.ini", {"group": {"backend": "gloo-tcp"}, "output": {"dir": self.dir / "out"}})
        r = self.finish(self.spawn([*self.on(0), harness.ENGINE, "launch", "--hosts", "10.83.7.1:2,10.83.7.2:1", "-c", path,
                                    "--ssh", "ssh " + self.server.options()]))
        self.equal(r.code, 0, r)
        self.check("10.83.7.1: ddpengine[0]: training mlp" in r.err and "with 3 ranks" in r.err and "over gloo-tcp" in r.err, r)

    @seldom
    def test_mpirun_on_two_hosts(self):
        """As docs/hosts/clusters.md says: MASTER_ADDR and MASTER_PORT by -x, and a secret in the INI."""
        if shutil.which("mpirun") is None or not (harness.BUILD / "backend_mpi.la").exists():
            raise Skip("no mpirun, or no backend mpi in this build")
        self.begin()
        secret = self.dir / "secret"
        self.equal(self.run("--gen-secret", secret).code, 0)
        path = self.ini("run.ini", {"group": {"backend": "mpi", "secret_file": secret}, "output": {"dir": self.dir / "out"}})
        r = self.finish(self.spawn(
            [*self.on(0), "mpirun", "--bind-to", "none", "--host", "10.83.7.1:2,10.83.7.2:2", "-np", 4,
             "--mca", "plm_rsh_agent", "ssh " + self.server.options(), "--mca", "btl_tcp_if_include", "10.83.7.0/24",
             "--mca", "oob_tcp_if_include", "10.83.7.0/24",
             "-x", "MASTER_ADDR=10.83.7.1", "-x", "MASTER_PORT=29500", *(x for name in harness.MPI_LEAKS for x in ("-x", name)),
             harness.ENGINE, "-c", path],
            {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **harness.MPI_LEAKS}))
        self.equal(r.code, 0, r)
        self.check("with 4 ranks" in r.err and "over mpi" in r.err, r)


if __name__ == "__main__":
    sys.exit(harness.main(Launch, Namespaces))
