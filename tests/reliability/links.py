"""Hosts as network namespaces at one switch, each with a supervisor of its own, and the link of a random one is cut: for a while,
for good, where another host takes its place, or for so long that all give up and are started again. Needs root and iproute2.

A cut is one of two: `unplugged`, where the host sees that its link is down, and `silent`, where the switch drops what it gets."""
import itertools
import os
import pathlib
import re
import shutil
import subprocess
import time

from survive import PEER_TIMEOUT, RANKS, STEP, Trial, harness

PREFIX, PORT, SETS = "ddpl-", 29500, itertools.count()
LOST = r"wait for the lost one|it is started again"
FAULTS = ("cut", "replaced", "away")
SHORT_REJOIN = 5


def ip(*args, check=True):
    r = subprocess.run(["ip", *map(str, args)], capture_output=True, text=True, check=False)
    if check and r.returncode != 0:
        raise AssertionError(f"ip {' '.join(map(str, args))}: {r.stderr.strip()}")
    return r


def missing():
    """Why there can be no such hosts here; None: there can."""
    if os.geteuid() != 0:
        return "not root: cannot make network namespaces"
    if shutil.which("ip") is None:
        return "no ip (iproute2)"
    try:
        with Switch():
            return None
    except AssertionError as why:
        return str(why)


def remove_left_over():
    """Namespaces of runs that were killed."""
    for line in ip("netns", "list", check=False).stdout.splitlines():
        match = re.fullmatch(PREFIX + r"(\d+)-\d+-\w+", line.split()[0])
        if match and not pathlib.Path(f"/proc/{match[1]}").exists():
            ip("netns", "del", line.split()[0], check=False)


class Switch:
    """A namespace with a bridge; host i has eth0 with 10.78.0.i, whose other end is port pN of the bridge."""

    def __init__(self):
        self.prefix, self.made, self.ports = f"{PREFIX}{os.getpid()}-{next(SETS)}-", [], 0

    def __enter__(self):
        remove_left_over()
        try:
            self.name = self.namespace("switch")
            ip("-n", self.name, "link", "add", "bridge", "type", "bridge")
            ip("-n", self.name, "link", "set", "bridge", "up")
        except AssertionError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.made:
            ip("netns", "del", name, check=False)

    def namespace(self, what):
        ip("netns", "add", self.prefix + what)
        self.made.append(self.prefix + what)
        return self.prefix + what

    def host(self, number):
        """Its namespace and its port."""
        self.ports += 1
        host, port = self.namespace(f"host{self.ports}"), f"p{self.ports}"
        ip("-n", self.name, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host)
        ip("-n", self.name, "link", "set", port, "master", "bridge", "up")
        # the same as that of a machine whose place it takes: the others need not find out first that it has another
        ip("-n", host, "link", "set", "eth0", "address", f"02:00:00:00:00:{number:02x}")
        ip("-n", host, "addr", "add", f"10.78.0.{number}/24", "dev", "eth0")
        ip("-n", host, "link", "set", "lo", "up")
        ip("-n", host, "link", "set", "eth0", "up")
        return host, port

    def cut(self, port, how):
        ip("-n", self.name, "link", "set", port, *(("down",) if how == "unplugged" else ("nomaster",)))

    def mend(self, port, how):
        ip("-n", self.name, "link", "set", port, *(("up",) if how == "unplugged" else ("master", "bridge")))


class LinkTrial(Trial):
    """A run of RANKS hosts. What its commands end with, `failures`, is empty unless they are started again, as systemd does."""

    def __init__(self, switch, fault):
        super().__init__()
        self.switch, self.fault, self.story, self.failures = switch, fault, "", []
        self.out, self.secret = self.dir / "run.out", self.dir / "secret"

    def begin_hosts(self):
        self.equal(self.run("--gen-secret", self.secret).code, 0)
        self.hosts = [self.switch.host(rank + 1) for rank in range(RANKS)]
        self.nodes = [self.node(rank, host) for rank, (host, _) in enumerate(self.hosts)]

    def node(self, rank, host):
        path = self.settings(f"node{rank}", {
            "group": {"backend": "gloo-tcp", "init_method": f"tcp://10.78.0.1:{PORT}", "world_size": RANKS, "rank": rank,
                      "secret_file": self.secret},
            "output": {"dir": self.out}, "checkpoint": {"dir": self.dir / "saved"},
            "run": {"rejoin_timeout": f"{SHORT_REJOIN if self.fault == 'away' else 60}s"}})
        return self.follow(self.spawn(["ip", "netns", "exec", host, harness.ENGINE, "-c", path, "--supervise"]))

    def running(self):
        """Whether the run goes on. What has ended by a failure that another start can mend is started again for `away`."""
        for rank, p in enumerate(self.nodes):
            if self.fault == "away" and p.poll() in (4, 5, 6):
                self.failures.append(p.returncode)
                self.nodes[rank] = self.node(rank, self.hosts[rank][0])
        return any(p.poll() is None for p in self.nodes) and not any(p.poll() for p in self.nodes)

    def strike(self, rng):
        """Cuts the link of one. (start events before, when, when the link was back or another host in its place)"""
        victim, how = rng.randrange(RANKS), rng.choice(("unplugged", "silent"))
        seconds = {"cut": rng.uniform(0.5, 4) * PEER_TIMEOUT, "replaced": rng.uniform(1, 3),
                   "away": PEER_TIMEOUT + SHORT_REJOIN * rng.uniform(1.2, 2)}[self.fault]
        self.story = f"rank {victim}, {how}, {self.fault}: {seconds:.2f} s"
        before, struck = self.starts_and_steps()[0], time.monotonic()
        self.switch.cut(self.hosts[victim][1], how)
        while self.running() and time.monotonic() < struck + seconds:
            time.sleep(0.01)
        if self.fault == "replaced":
            self.replaced = self.nodes[victim]
            # rank 0 is where all look for it, any other rank may come from elsewhere
            number = victim + 1 if victim == 0 else rng.choice((victim + 1, RANKS + 1))
            self.nodes[victim] = self.node(victim, self.switch.host(number)[0])
        else:
            self.switch.mend(self.hosts[victim][1], how)
        return before, struck, time.monotonic()

    def to_the_end(self):
        harness.until(lambda: not self.running(), "the run does not end")
        for p in self.nodes:
            p.wait(harness.PATIENCE)
        if self.fault == "replaced":
            self.check(self.replaced.poll() != 0, "the host that was cut off for good says that the run is complete")
            self.replaced.kill()
        self.equal(self.ended(*self.nodes), [0] * RANKS)
        self.no_processes_left(self.dir)


def one(fault, rng, span):
    """(hash, seconds from the link's return, or from the loss where that is known later, to the first new step, updates made again);
    None where the run was over before the fault."""
    with Switch() as switch:
        t = LinkTrial(switch, fault)
        try:
            t.begin_hosts()
            harness.until(lambda: t.when(STEP)[0] or not t.running(), "does not train")
            time.sleep(rng.uniform(0, 0.7 * span))
            if any(p.poll() is not None for p in t.nodes):
                return None
            before, struck, back = t.strike(rng)
            stepped = t.first_new_step(before, t.running)
            t.to_the_end()
            known = t.when(LOST, struck)[0]
            if known is None:  # the link was back before anybody missed it
                return t.sha(), None, None
            return t.sha(), None if stepped is None else stepped - max(known, back), t.updates_again(struck)
        except AssertionError as why:
            print(f"{t.story}: {why}\n{t.last_lines(40)}", flush=True)
            return str(why), None, None
        finally:
            t.close()
