"""Two hosts as network namespaces: which interface and address a rank takes, what the others say when they do not reach it,
and a cut link. Between the hosts are two links, eth0 and eth1; a third interface, dec0, comes first in every list and has the
default route, and leads nowhere. Needs root and iproute2; the namespaces have names of their own and are always removed."""
import itertools
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import harness
from harness import Case, Skip, until

SHORT = {"train": {"epochs": 1, "max_steps": 20}, "model.mlp": {"hidden": "500, 200"}}  # 0.4 MB a step each way
LONG = {"train": {"epochs": 100000, "max_steps": None}, "output": {"log_every": 20}}
PORT = 29500  # each namespace has all ports to itself
SETS = itertools.count()
PREFIX = "ddpt-"

# A process of its own in a namespace: passes connections on, as an SSH tunnel does.
FORWARD = """
import socket, sys, threading
def pump(a, b):
    try:
        while data := a.recv(65536): b.sendall(data)
    except OSError: pass
    for s in (a, b):
        try: s.shutdown(socket.SHUT_RDWR)
        except OSError: pass
l = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
while True:
    a = l.accept()[0]
    b = socket.create_connection((sys.argv[3], int(sys.argv[4])))
    for pair in ((a, b), (b, a)): threading.Thread(target=pump, args=pair, daemon=True).start()
"""


def ip(*args, check=True):
    return subprocess.run(["ip", *args], capture_output=True, text=True, check=check)


def remove_left_over():
    """Namespaces of test runs that were killed."""
    for line in ip("netns", "list", check=False).stdout.splitlines():
        name = line.split()[0]
        match = re.fullmatch(PREFIX + r"(\d+)-\d+[ab]", name)
        if match and not pathlib.Path(f"/proc/{match[1]}").exists():
            ip("netns", "del", name, check=False)


class Network(Case):
    def __init__(self):
        super().__init__()
        self.names, self.helpers = [], []

    def close(self):
        for p in self.helpers:
            p.kill()
            p.wait()
        super().close()
        for name in self.names:
            ip("netns", "del", name, check=False)

    def setup(self):
        """Namespaces self.a and self.b. Skips where they cannot be made."""
        if os.geteuid() != 0:
            raise Skip("not root: cannot make network namespaces")
        if shutil.which("ip") is None:
            raise Skip("no ip (iproute2)")
        remove_left_over()
        number = next(SETS)
        self.a, self.b = (f"{PREFIX}{os.getpid()}-{number}{side}" for side in "ab")
        for name in (self.a, self.b):
            made = ip("netns", "add", name, check=False)
            if made.returncode != 0:
                raise Skip(f"ip netns: {made.stderr.strip()}")
            self.names.append(name)
        for i, name in enumerate(self.names, 1):
            if ip("-n", name, "link", "add", "dec0", "type", "veth", "peer", "name", "dec1", check=False).returncode != 0:
                raise Skip("no veth interfaces here")
        for link in (0, 1):
            ip("-n", self.a, "link", "add", f"eth{link}", "type", "veth", "peer", "name", f"eth{link}", "netns", self.b)
        for i, name in enumerate(self.names, 1):
            # the decoy's addresses are lower on one side and higher on the other than those of eth0
            for device, address in (("dec0", f"10.{66 + 22 * (i - 1)}.0.{i}/24"), ("eth0", f"10.77.0.{i}/24"),
                                    ("eth1", f"10.99.0.{i}/24"), ("eth0", f"fd00:77::{i}/64"), ("eth0", f"fe80::77:{i}/64")):
                ip("-n", name, "addr", "add", address, "dev", device, *(("nodad",) if ":" in address else ()))
            for device in ("lo", "dec0", "dec1", "eth0", "eth1"):
                ip("-n", name, "link", "set", device, "up")
            ip("-n", name, "route", "add", "default", "dev", "dec0")

    def inside(self, name, *command, check=True):
        return subprocess.run(["ip", "netns", "exec", name, *command], capture_output=True, text=True, check=check)

    def rank(self, where, rank, *layers, url=f"tcp://10.77.0.1:{PORT}", env=None, args=(), world=2, hosts=None, file=None,
             **group):
        path = self.ini(file or f"{rank}.ini", SHORT, *layers,
                        {"group": {"init_method": url, "world_size": world, "rank": rank, "auth": "none",
                                   "rendezvous_timeout": "20s", **group},
                         "output": {"dir": self.dir / f"{rank}.out"}})
        command = ["ip", "netns", "exec", where]
        if hosts is not None:  # the command has a mount namespace of its own
            (self.dir / f"hosts{rank}").write_text(hosts)
            command += ["sh", "-c", f"mount --bind '{self.dir}/hosts{rank}' /etc/hosts && exec \"$@\"", "sh"]
        return self.spawn([*command, harness.ENGINE, "-c", path, *args], env)

    def sent(self, where, device):
        """Bytes."""
        return int(self.inside(where, "cat", f"/sys/class/net/{device}/statistics/tx_bytes").stdout)

    def traffic(self, *ranks):
        """Runs them to their good end; the interface by which most has been sent since setup(), on each host."""
        for p in ranks:
            r = self.finish(p)
            self.equal(r.code, 0, r)
        most = []
        for w in self.names:
            bytes_of = {d: self.sent(w, d) for d in ("dec0", "eth0", "eth1")}
            most.append(max(bytes_of, key=bytes_of.get))
            self.check(bytes_of[most[-1]] > 1000000, bytes_of)
            self.check(bytes_of["dec0"] < 10000, bytes_of)
        return most

    # ---- which one is taken ----------------------------------------------------------------------------------------
    def test_the_route_to_rank_0_chooses(self):
        self.setup()
        self.equal(self.traffic(self.rank(self.a, 0), self.rank(self.b, 1)), ["eth0", "eth0"])

    def test_two_ranks_on_one_host_and_one_on_the_other(self):
        self.setup()
        self.equal(self.traffic(self.rank(self.a, 0, world=3, args=("--nproc", 2)), self.rank(self.b, 2, world=3)),
                   ["eth0", "eth0"])

    def test_the_named_interface_is_taken(self):
        self.setup()
        ip("-n", self.b, "link", "set", "eth1", "down")
        ip("-n", self.b, "link", "set", "eth1", "name", "fast0")  # a name of its own on each host
        ip("-n", self.b, "link", "set", "fast0", "up")
        ranks = self.rank(self.a, 0, interface="eth1"), self.rank(self.b, 1, interface="fast0")
        for p in ranks:
            r = self.finish(p)
            self.equal(r.code, 0, r)
        data, control = (self.sent(self.b, d) for d in ("fast0", "eth0"))
        self.check(data > 1000000 and data > 10 * control, (data, control))

    def test_gloos_own_variable(self):
        self.setup()
        env = {"GLOO_SOCKET_IFNAME": "eth1"}
        self.equal(self.traffic(self.rank(self.a, 0, env=env), self.rank(self.b, 1, env=env)), ["eth1", "eth1"])

    def test_the_key_goes_before_gloos_own_variable(self):
        self.setup()
        env = {"GLOO_SOCKET_IFNAME": "dec0"}
        self.equal(self.traffic(self.rank(self.a, 0, env=env, interface="eth1"),
                                self.rank(self.b, 1, env=env, interface="eth1")), ["eth1", "eth1"])

    def test_control_connection_comes_from_the_named_interface(self):
        """Rank 0's host lets nobody in by port 29500 but from the address of the other host's eth1."""
        self.setup()
        if shutil.which("nft") is None:
            raise Skip("no nft (nftables)")
        rules = ("add table inet t; add chain inet t i { type filter hook input priority 0; }; "
                 f"add rule inet t i tcp dport {PORT} ip saddr != 10.99.0.2 drop")
        if self.inside(self.a, "nft", rules, check=False).returncode != 0:
            raise Skip("nft does not work here")
        self.traffic(self.rank(self.a, 0), self.rank(self.b, 1, interface="eth1"))

    # ---- IPv6 ------------------------------------------------------------------------------------------------------
    def test_ipv6(self):
        self.setup()
        url = f"tcp://[fd00:77::1]:{PORT}"
        self.equal(self.traffic(self.rank(self.a, 0, url=url), self.rank(self.b, 1, url=url)), ["eth0", "eth0"])

    def test_ipv6_link_local(self):
        """The same interface has another number on each host."""
        self.setup()
        ip("-n", self.b, "link", "add", "more0", "type", "veth", "peer", "name", "more1")
        ip("-n", self.b, "link", "set", "eth0", "down")
        ip("-n", self.b, "link", "del", "eth0")
        ip("-n", self.a, "link", "add", "eth0", "type", "veth", "peer", "name", "last0", "netns", self.b)
        for where, device, last in ((self.a, "eth0", 1), (self.b, "last0", 2)):
            ip("-n", where, "addr", "add", f"fe80::77:{last}/64", "dev", device, "nodad")
            ip("-n", where, "link", "set", device, "up")
        ranks = (self.rank(self.a, 0, url=f"tcp://[fe80::77:1%eth0]:{PORT}"),
                 self.rank(self.b, 1, url=f"tcp://[fe80::77:1%last0]:{PORT}"))
        for p in ranks:
            r = self.finish(p)
            self.equal(r.code, 0, r)

    # ---- mistakes --------------------------------------------------------------------------------------------------
    def test_unknown_interface_before_the_rendezvous(self):
        self.setup()
        r = self.finish(self.rank(self.b, 1, interface="eht0"))
        # the system gives a link-local address of its own as well, before or after
        self.fails(r, 2, "1.ini:", '"eht0"', re.compile(r"eth0 \(10\.77\.0\.2, fd00:77::2, [^)]*fe80::77:2%eth0"), "dec0 (10.88.0.2")

    def test_unknown_name_in_gloos_own_variable(self):
        self.setup()
        r = self.finish(self.rank(self.b, 1, env={"GLOO_SOCKET_IFNAME": "eht0"}))
        self.fails(r, 2, "GLOO_SOCKET_IFNAME=eht0", "eth0 (10.77.0.2)")

    def test_interface_that_is_down(self):
        self.setup()
        ip("-n", self.b, "link", "set", "eth1", "down")
        self.fails(self.finish(self.rank(self.b, 1, interface="eth1")), 2, '"eth1" is down')

    def test_interface_without_the_family(self):
        self.setup()
        ip("-n", self.b, "-6", "addr", "flush", "dev", "eth1")
        r = self.finish(self.rank(self.b, 1, url=f"tcp://[fd00:77::1]:{PORT}", interface="eth1"))
        self.fails(r, 2, '"eth1" has no IPv6 address', f"rank 0 is at [fd00:77::1]:{PORT}")

    def test_interface_that_leads_nowhere(self):
        self.setup()
        zero = self.rank(self.a, 0, rendezvous_timeout="3s")
        r = self.finish(self.rank(self.b, 1, interface="dec0", rendezvous_timeout="3s"))
        self.fails(r, 4, "rank 0 was not found", "(from 10.88.0.2 of interface dec0)")
        self.equal(self.finish(zero).code, 4)

    def test_rank_that_is_not_reached_back(self):
        """Both find each other, but the data's way from rank 1 to rank 0 leads nowhere: rank 0's decoy has the lower address."""
        self.setup()
        ranks = (self.rank(self.a, 0, interface="dec0", rendezvous_timeout="4s"),
                 self.rank(self.b, 1, rendezvous_timeout="4s"))
        for p in ranks:
            r = self.finish(p)
            self.fails(r, 4, "rank 0 on host ", "10.66.0.1", "rank 1 on host ", "10.77.0.2", "firewall", "interface")

    def test_ports_behind_a_firewall(self):
        """Rank 0's port is open and no other; nothing is refused, all is dropped."""
        self.setup()
        if shutil.which("nft") is None:
            raise Skip("no nft (nftables)")
        rules = ("add table inet t; add chain inet t i { type filter hook input priority 0; policy drop; }; "
                 f"add rule inet t i ct state established accept; add rule inet t i tcp dport {PORT} accept")
        for where in self.names:
            if self.inside(where, "nft", rules, check=False).returncode != 0:
                raise Skip("nft does not work here")
        for p in (self.rank(self.a, 0, rendezvous_timeout="6s"), self.rank(self.b, 1, rendezvous_timeout="6s")):
            r = self.finish(p)
            self.fails(r, 4, "rank 0 on host ", "10.77.0.1", "rank 1 on host ", "10.77.0.2", "within 6 s", "firewall")
            self.check("still waits for a connection with rank " in r.err, r)

    # ---- loopback --------------------------------------------------------------------------------------------------
    def test_host_name_that_is_loopback_on_rank_0(self):
        """As Debian's installer leaves /etc/hosts."""
        self.setup()
        url = f"tcp://node1:{PORT}"
        zero = self.rank(self.a, 0, url=url, hosts="127.0.0.1 localhost\n127.0.1.1 node1\n", rendezvous_timeout="3s")
        one = self.rank(self.b, 1, url=url, hosts="127.0.0.1 localhost\n10.77.0.1 node1\n", rendezvous_timeout="3s")
        r = self.finish(zero)
        self.fails(r, 4, f"at node1:{PORT}", "on this host that is a loopback address")
        self.check("node1:29500, and on this host that name stands for a loopback address (/etc/hosts)" in r.err, r)
        self.fails(self.finish(one), 4, "rank 0 was not found")

    def test_host_name_that_is_loopback_too(self):
        self.setup()
        url = f"tcp://node1:{PORT}"
        self.equal(self.traffic(self.rank(self.a, 0, url=url, hosts="127.0.1.1 node1\n10.77.0.1 node1\n"),
                                self.rank(self.b, 1, url=url, hosts="10.77.0.1 node1\n")), ["eth0", "eth0"])

    def test_tunnel_that_ends_in_loopback(self):
        self.setup()
        for where, *args in ((self.a, "10.77.0.1", "4000", "127.0.0.1", str(PORT)),
                             (self.b, "127.0.0.1", str(PORT), "10.77.0.1", "4000")):
            p = subprocess.Popen(["ip", "netns", "exec", where, sys.executable, "-c", FORWARD, *args], stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL, text=True)
            self.helpers.append(p)
            self.equal(p.stdout.readline(), "ready\n")
        url = f"tcp://127.0.0.1:{PORT}"
        zero = self.rank(self.a, 0, url=url)
        self.wait_for_listener(self.a)
        for p in (zero, self.rank(self.b, 1, url=url)):
            self.fails(self.finish(p), 4, "over its loopback address 127.0.0.1", "[group] interface")
        ranks = []
        for rank, where in enumerate(self.names):
            ranks.append(self.rank(where, rank, url=url, interface="eth1"))
            if rank == 0:
                self.wait_for_listener(self.a)
        self.equal(self.traffic(*ranks), ["eth1", "eth1"])

    def wait_for_listener(self, where):
        until(lambda: self.inside(where, "ss", "-Hltn", f"sport = :{PORT}").stdout.strip(), "rank 0 does not listen")

    # ---- a cut link ------------------------------------------------------------------------------------------------
    def test_cut_link_ends_both_sides(self):
        """Packets are dropped without a word; nothing is reset."""
        self.setup()
        if shutil.which("nft") is None:
            raise Skip("no nft (nftables)")
        timeout = 2
        ranks = (self.rank(self.a, 0, LONG, peer_timeout=f"{timeout}s"), self.rank(self.b, 1, LONG, peer_timeout=f"{timeout}s"))
        metrics = self.dir / "0.out" / "metrics.jsonl"
        until(lambda: ranks[0].poll() is not None or metrics.exists() and '"step": 40' in metrics.open().read(65536), "no training")
        time.sleep(random.random())  # at any moment between two heartbeats
        rules = ("add table inet t; add chain inet t i { type filter hook input priority 0; }; add rule inet t i iifname eth0 drop; "
                 "add chain inet t o { type filter hook output priority 0; }; add rule inet t o oifname eth0 drop")
        if self.inside(self.b, "nft", rules, check=False).returncode != 0:
            raise Skip("nft does not work here")
        for i, p in enumerate(ranks):
            self.fails(self.finish(p), 6, f"rank {1 - i}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that namespaces are removed
    sys.exit(harness.main(Network))
