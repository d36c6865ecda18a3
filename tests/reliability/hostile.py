"""Strangers at rank 0's port, while the ranks find each other and while they train: the run ends with the bits of an undisturbed one, rank 0's
memory grows by less than 16 MiB, and no rank listens anywhere else than it must."""
import json
import os
import threading
import time

import harness
from attacks import Attacker, Recorder
from trial import SLOW, Row, backends, free_port

GROWTH_MIB = 16
WORLD, EPOCHS, BETWEEN_MS = 2, 400, 10


def sockets_of(pid):
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found


def bound(pids):
    """[(pid, protocol, address, port)] where these processes wait for strangers: TCP listeners, and UDP sockets at all."""
    at = []
    for pid in pids:
        own = sockets_of(pid)
        for protocol in ("tcp", "tcp6", "udp", "udp6"):
            with open(f"/proc/{pid}/net/{protocol}", encoding="ascii") as f:
                for line in f.readlines()[1:]:
                    words = line.split()
                    if words[9] in own and (words[3] == "0A" or protocol.startswith("udp")):
                        address, port = words[1].split(":")
                        at.append((pid, protocol, address, int(port, 16)))
    return at


def listens_nowhere_else(t, pids, port):
    """Rank 0's port once; of the backend only listeners at the run's own address, none with shm."""
    at = bound(pids)
    control = [b for b in at if b[3] == port]
    t.equal([b[:3] for b in control], [(pids[0], "tcp", "0100007F")], f"who listens: {at}")
    for b in at:
        if b not in control:
            t.check(t.backend == "gloo-tcp" and b[1:3] == ("tcp", "0100007F"), f"a rank listens at {b} too: {at}")


def layers(t, secret):
    """`secret`: whether the ranks have one."""
    path = t.dir / "secret"
    if not path.exists():  # a rank that has started may be reading it
        path.write_text("5ec2e7" * 10 + "\n")
        path.chmod(0o600)
    return [t.paced(EPOCHS, BETWEEN_MS), {"group": {"rendezvous_timeout": "120s", "secret_file": path if secret else None}}]


_calm, _calm_lock = {}, threading.Lock()


def undisturbed(t, secret):
    """(bits, bytes of memory) of the same run that nobody disturbs; and what rank 1 sent to rank 0."""
    with _calm_lock:
        if (t.backend, secret) not in _calm:
            url = t.url("tcp")
            port = free_port()
            relay = Recorder(port, url.removeprefix("tcp://"))
            group = {"group": {"init_method": url, "world_size": WORLD}}
            open_gate = {"sampler.paced": {"gate": t.dir}}
            p = [t.spawn("calm0", "-c", t.config("calm0", group, *layers(t, secret), open_gate)),
                 t.spawn("calm1", "-c", t.config("calm1", group, *layers(t, secret), open_gate,
                                                 {"group": {"rank": 1, "init_method": f"tcp://127.0.0.1:{port}"}}))]
            for q in p:
                t.equal(q.wait(60 * SLOW), 0, t.log(q))
            relay.close()
            summary = json.loads((t.dir / "calm0.out" / "summary.json").read_text())
            _calm[t.backend, secret] = summary["parameter_sha256"], summary["peak_rss_bytes"], bytes(relay.sent)
        return _calm[t.backend, secret]


def attack(t, attacker, recorded, when):
    began = time.monotonic()
    for a in t.rng.sample(Attacker.ALL, len(Attacker.ALL)):
        a(attacker)
    if recorded:
        attacker.replay([recorded])
        attacker.stolen_identity(recorded)
    t.tell(f"attacked while ranks {when}: {attacker.made} connections, {attacker.refused} refused, "
           f"{time.monotonic() - began:.1f} s")


def trial(t, secret):
    bits, memory, recorded = undisturbed(t, secret)
    t.check(len(recorded) > 100, "nothing was recorded")
    t.equal(b"train.batch_size" in recorded, not secret, "what a rank sends is in clear, or is not")
    url = t.url("tcp")
    endpoint = url.removeprefix("tcp://")
    port = int(endpoint.rsplit(":", 1)[1])
    attacker = Attacker(endpoint, t.rng, t.scale)
    try:
        ranks = t.ranks(WORLD, *layers(t, secret), only=[0], url=url)
        t.until(lambda: any(b[3] == port for b in bound([ranks[0].pid])), "rank 0 listens", 30, ranks[0])
        attack(t, attacker, recorded if secret else None, "rendezvous")  # in clear a replayed hello is a right one
        ranks |= t.ranks(WORLD, *layers(t, secret), only=[1], url=url)
        t.trains(ranks[0], "r0")
        attack(t, attacker, recorded, "train")
        t.equal([p.poll() for p in ranks.values()], [None] * WORLD, "ended under attack")
        listens_nowhere_else(t, [ranks[r].pid for r in range(WORLD)], port)
        t.go()
        for p in ranks.values():
            t.equal(p.wait(60 * SLOW), 0, t.log(p))
    finally:
        attacker.close()
    t.equal(t.sha("r0"), bits, "not the bits of an undisturbed run")
    grown = (json.loads((t.dir / "r0.out" / "summary.json").read_text())["peak_rss_bytes"] - memory) / 2**20
    t.tell(f"rank 0 grew by {grown:.1f} MiB")
    t.worst = max(grown, 0.0)
    if not harness.SANITIZED:
        t.check(grown < GROWTH_MIB, f"rank 0 grew by {grown:.1f} MiB, allowed {GROWTH_MIB}")
    t.nothing_left()


def rows():
    return [Row(name, b, lambda t, s=secret: trial(t, s), f"{GROWTH_MIB} MiB", most=20, unit="MiB")
            for name, secret in (("strangers at the port", False), ("strangers at the port, TLS", True))
            for b in backends() if b != "mpi"]
