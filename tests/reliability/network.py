"""Two hosts as network namespaces, a link between them and a decoy beside it: the data take the link, and when it is cut without
a word both sides end within peer_timeout + 1 s."""
import os
import re
import shutil
import time

from trial import Row, Skip
from test_network import PORT, Network

PEER_TIMEOUT_S = 2
WIDE = {"model.mlp": {"hidden": "500, 200"}}  # 0.4 MB a step each way
CUT = ("add table inet t; add chain inet t i { type filter hook input priority 0; }; add rule inet t i iifname eth0 drop; "
       "add chain inet t o { type filter hook output priority 0; }; add rule inet t o oifname eth0 drop")


def trial(t):
    hosts = Network()
    try:
        hosts.setup()
        where = [hosts.a, hosts.b]
        t.rng.shuffle(where)  # the decoy's addresses are the lower ones on one side, the higher ones on the other
        rank0 = "10.77.0.1" if where[0] == hosts.a else "10.77.0.2"
        group = {"group": {"init_method": f"tcp://{rank0}:{PORT}", "world_size": 2, "auth": "none", "rendezvous_timeout": "20s",
                           "peer_timeout": f"{PEER_TIMEOUT_S}s"}}
        before = {(w, d): hosts.sent(w, d) for w in where for d in ("dec0", "eth0", "eth1")}
        ranks = [t.spawn(f"r{r}", "-c", t.config(f"r{r}", group, t.paced(10000000, 10), WIDE, {"group": {"rank": r}}),
                         command=["ip", "netns", "exec", where[r]]) for r in (0, 1)]
        t.trains(ranks[0], "r0")
        time.sleep(t.rng.uniform(0.3, 1.3))
        sent = {key: hosts.sent(*key) - n for key, n in before.items()}
        side = t.rng.randrange(2)
        hosts.inside(where[side], "nft", CUT)
        cut = time.monotonic()
        t.tell(f"rank 0 at {rank0}; sent in bytes {sent}; the link is cut on the side of rank {side}")
        for w in where:
            t.check(sent[w, "eth0"] > 200000 and sent[w, "eth0"] > 20 * (sent[w, "dec0"] + sent[w, "eth1"]), sent)
        for r, e in enumerate(t.all_end(ranks, PEER_TIMEOUT_S + 1, cut)):
            t.one_error(e, 6, re.compile(rf"\brank {1 - r}\b"), "peer_timeout")
        t.nothing_left()
    finally:
        hosts.close()


def needs():
    if os.geteuid() != 0:
        raise Skip("not root: cannot make network namespaces")
    for program, package in (("ip", "iproute2"), ("nft", "nftables")):
        if shutil.which(program) is None:
            raise Skip(f"no {program} ({package})")
    hosts = Network()
    try:
        hosts.setup()
        if hosts.inside(hosts.a, "nft", CUT, check=False).returncode != 0:
            raise Skip("nft does not work here")
    finally:
        hosts.close()


def rows():
    return [Row("a cut link between two hosts", "gloo-tcp", trial, f"{PEER_TIMEOUT_S + 1} s", most=20, jobs=3, needs=needs)]
