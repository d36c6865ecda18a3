"""Mistakes at the rendezvous: every rank leaves with exit 4 and a line with both values, within a second of the moment at which
the mistake can be seen; a rank that is only late is waited for."""
import os
import re
import socket
import time

from trial import LONG, SLOW, Row, built, free_port, merged

SEEN_S = 1  # from the moment at which a mistake can be seen to the last rank's end


def start_seconds(t):
    """How long ranks take here and now until they go to the rendezvous: a mistake cannot be seen earlier. Measured in each trial,
    since the machine may be busy."""
    began = time.monotonic()
    both = [t.spawn(f"start{i}", "-c", t.config(f"start{i}"), "--check") for i in range(2)]
    for p in both:
        t.equal(p.wait(60), 0, t.log(p))
    return time.monotonic() - began


def all_leave(t, processes, parts, began, code=4):
    """Within a second, and the start of the last one."""
    spare = 2 * start_seconds(t)
    ended = t.all_end(processes, SEEN_S + spare, began)
    for e in ended:
        t.one_error(e, code, *parts)
    return ended


def shuffled(t, world, layers, each, init, url=None):
    """Starts `each` = [(name, layers)] in a random order, at random moments within 0.2 s. The INIs are written before."""
    url = url or t.url(init)
    order = list(each)
    t.rng.shuffle(order)
    group = {"group": {"init_method": url, "world_size": world, "rendezvous_timeout": "20s"}}
    paths = {name: t.config(name, group, layers, own) for name, own in order}
    started = {}
    for name, _ in order:
        started[name] = t.spawn(name, "-c", paths[name])
        time.sleep(t.rng.choice((0, 0, t.rng.uniform(0, 0.1))))
    t.tell(f"{url}, started in the order {[name for name, _ in order]}")
    return started


def rank(r, *layers):
    return (f"r{r}", merged({"group": {"rank": r}}, *layers))


# ---- the mistakes -----------------------------------------------------------------------------------------------------
def port_in_use(t, init):
    with socket.socket() as s:
        port = free_port()
        s.bind(("127.0.0.1", port))
        s.listen()
        began = time.monotonic()
        p = t.spawn("r0", "-c", t.config("r0", {"group": {"init_method": f"tcp://127.0.0.1:{port}", "world_size": 2}}))
        all_leave(t, [p], [f"127.0.0.1:{port}", "in use"], began)


def duplicate_rank(t, init):
    world = t.rng.randrange(3, 5)
    twice = t.rng.randrange(1, world)
    each = [rank(r) for r in range(world) if r == twice or r == 0] + [("again", {"group": {"rank": twice}})]
    p = shuffled(t, world, {}, each, init)
    ended = all_leave(t, p.values(), [f"rank {twice} is already taken"], max(q.began for q in p.values()))
    for e in ended:  # both of them
        for name in (f"r{twice}", "again"):
            t.check(f"pid {p[name].pid}" in e.errors()[0], f"no pid {p[name].pid} of {name} in: {e.errors()[0]}")


def rank_out_of_range(t, init):
    """Seen by the rank itself, before it reaches anyone: exit 2, as for every value that cannot be."""
    world = t.rng.randrange(1, 5)
    r = world + t.rng.randrange(3)
    began = time.monotonic()
    p = t.spawn("r", "-c", t.config("r", {"group": {"init_method": t.url(init), "world_size": world, "rank": r}}))
    all_leave(t, [p], [f"rank", str(r), "world_size", str(world), "r.ini:"], began, code=2)


def differing_world(t, init):
    a, b = t.rng.sample(range(2, 6), 2)
    p = shuffled(t, a, {}, [rank(0), rank(1, {"group": {"world_size": b}})], init)
    all_leave(t, p.values(), ["world_size", f"{a} (", f"{b} (", "r0.ini:", "r1.ini:"], max(q.began for q in p.values()))


def differing_secret(t, init):
    """Another file on one host, or none there, or none anywhere else."""
    paths = [None]
    for name in ("ours", "theirs"):
        paths.append(t.dir / name)
        paths[-1].write_text(t.rng.randbytes(32).hex() + "\n")
        paths[-1].chmod(0o600)
    world = t.rng.randrange(2, 5)
    odd = t.rng.randrange(1, world)
    ours, theirs = t.rng.sample(paths, 2)
    p = shuffled(t, world, {"group": {"secret_file": ours}},
                 [rank(r, {"group": {"secret_file": theirs}} if r == odd else {}) for r in range(world)], init)
    value = {True: "[0-9a-f]{16}", False: "none"}
    has = ours is not None or init == "file"  # where rank 0 makes one for the run
    all_leave(t, p.values(), [f"rank {odd} at 127.0.0.1:", "differ in their secret", re.compile(
        rf"fingerprint is {value[theirs is not None]} \(rank {odd}\) against {value[has]} \(rank 0\)")],
        max(q.began for q in p.values()))


def missing_rank(t, init):
    """Any of them, rank 0 too; it is seen when rendezvous_timeout is over."""
    world = t.rng.randrange(2, 5)
    gone = t.rng.randrange(world)
    p = shuffled(t, world, {"group": {"rendezvous_timeout": None}},
                 [rank(r, {"group": {"rendezvous_timeout": "1s"}}) for r in range(world) if r != gone], init)
    spare = 2 * start_seconds(t)
    ended = t.all_end(p.values(), SEEN_S + spare, 1 + max(q.began for q in p.values()))
    for e in ended:
        t.one_error(e, 4, re.compile(rf"\brank {gone}\b"), "1 s", "rendezvous_timeout")


def late(t, init, first, last):
    """`last` comes late and the run goes its way."""
    group = {"group": {"init_method": t.url(init), "world_size": len(first) + 1, "rendezvous_timeout": "30s"}}
    p = [t.spawn(f"r{r}", "-c", t.config(f"r{r}", group, {"group": {"rank": r}})) for r in first]
    time.sleep(t.rng.uniform(0.2, 1.0))
    p.append(t.spawn(f"r{last}", "-c", t.config(f"r{last}", group, {"group": {"rank": last}})))
    for q in p:
        t.equal(q.wait(60 * SLOW), 0, t.log(q))


def rank0_last(t, init):
    late(t, init, list(range(1, t.rng.randrange(2, 5))), 0)


def late_rank(t, init):
    world = t.rng.randrange(2, 5)
    last = t.rng.randrange(1, world)
    late(t, init, [r for r in range(world) if r != last], last)


def two_jobs(t, init):
    """Job b comes where job a trains, which must not be disturbed, or waits for its last rank."""
    url, training = t.url(init), t.seed % 2 == 0
    group = {"group": {"init_method": url, "world_size": 2, "rendezvous_timeout": "20s"}}
    paths = {f"{job}{r}": t.config(f"{job}{r}", group, t.paced(60, 5), {"group": {"rank": r}, "optimizer": {"lr": lr}})
             for job, lr in (("a", 0.05), ("b", 0.07)) for r in (0, 1)}
    t.tell(f"{url}: job b comes while job a {'trains' if training else 'waits for its rank 1'}")
    first = [t.spawn(name, "-c", paths[name]) for name in (("a0", "a1") if training else ("a0",))]
    if training:
        t.trains(first[0], "a0")
    else:
        listens(t, first[0], url)
    taken = [url.removeprefix("tcp://"), "in use"]
    spare = 2 * start_seconds(t)
    b0 = t.spawn("b0", "-c", paths["b0"])
    ended, = t.all_end([b0], SEEN_S + spare, b0.began)
    t.one_error(ended, 4, *taken)
    b1 = t.spawn("b1", "-c", paths["b1"])  # the last: job a may end by it
    for e in t.all_end([b1, *([] if training else first)], SEEN_S + spare, b1.began):
        t.one_error(e, 4, *([f"pid {first[1].pid}", f"pid {b1.pid}", "already taken"] if training else
                            ["optimizer.lr", "0.05", "0.07", "a0.ini:", "b1.ini:"]))
    if training:
        t.go()
        for p in first:
            t.equal(p.wait(60), 0, t.log(p))


def listens(t, p, url):
    port = f":{int(url.rsplit(':', 1)[1]):04X}"

    def seen():
        with open("/proc/net/tcp", encoding="ascii") as f:
            return any(line.split()[1].endswith(port) and line.split()[3] == "0A" for line in f)
    t.until(seen, f"rank 0 listens at {url}", 30, p)


def stale_file(t, init):
    """Of a run that was killed: the next one says so, takes it over, and is met there."""
    url, world = t.url(init), t.rng.randrange(2, 5)
    p = t.ranks(world, LONG, url=url)
    t.trains(p[0], "r0")
    p[0].kill()
    for q in p.values():
        q.wait(30 * SLOW)
    path = url.removeprefix("file://")
    t.check(os.path.exists(path), "rank 0 was killed, and its file is gone")
    p = shuffled(t, world, {}, [rank(r) for r in range(world)], init, url)
    for q in p.values():
        t.equal(q.wait(60 * SLOW), 0, t.log(q))
    t.check(f"{path} is of a run that has died" in t.log(p["r0"]), t.log(p["r0"]))
    t.check(not os.path.exists(path), "the file is left behind")


def unwritable_file(t, init):
    """A folder that is not there, one where nothing can be created, a folder of that name, a file of somebody else's."""
    (t.dir / "folder").mkdir()
    (t.dir / "other").write_text("precious\n")
    path, what, seers = [(t.dir / "nowhere" / "rendezvous", "No such file", (0, 1)), ("/sys/kernel/rendezvous", "may write", (0,)),
                         (t.dir / "folder", "is a folder", (0, 1)), (t.dir / "other", "holds something else", (0, 1))][t.seed % 4]
    p = shuffled(t, 2, {}, [rank(r) for r in seers], init, f"file://{path}")
    all_leave(t, p.values(), [str(path), what], max(q.began for q in p.values()))
    t.equal((t.dir / "other").read_text(), "precious\n")


def two_jobs_file(t, init):
    """Only rank 0 of the second job can see it; its other ranks cannot tell whose they are, but by a differing option."""
    url, training = t.url(init), t.seed % 2 == 0
    group = {"group": {"init_method": url, "world_size": 2, "rendezvous_timeout": "20s"}}
    paths = {f"a{r}": t.config(f"a{r}", group, t.paced(60, 5), {"group": {"rank": r}}) for r in (0, 1)}
    paths["b0"] = t.config("b0", group, {"group": {"rank": 0}})
    t.tell(f"{url}: job b comes while job a {'trains' if training else 'waits for its rank 1'}")
    first = [t.spawn("a0", "-c", paths["a0"])]
    if training:
        first.append(t.spawn("a1", "-c", paths["a1"]))
        t.trains(first[0], "a0")
    else:
        t.until(lambda: os.path.exists(url.removeprefix("file://")), "the file is there", 30, first[0])
    b0 = t.spawn("b0", "-c", paths["b0"])
    all_leave(t, [b0], [f"pid {first[0].pid}", f"pid {b0.pid}", "in use by another run"], b0.began)
    if not training:
        first.append(t.spawn("a1", "-c", paths["a1"]))
    t.go()
    for q in first:
        t.equal(q.wait(60 * SLOW), 0, t.log(q))


MISTAKES = {
    "port in use": (port_in_use, ("tcp",)),
    "duplicate rank": (duplicate_rank, ("tcp", "file")),
    "rank >= world": (rank_out_of_range, ("tcp", "file")),
    "differing world": (differing_world, ("tcp", "file")),
    "differing secret": (differing_secret, ("tcp", "file")),
    "missing rank": (missing_rank, ("tcp", "file")),
    "two jobs on one port": (two_jobs, ("tcp",)),
    "two jobs on one file": (two_jobs_file, ("file",)),
    "stale file": (stale_file, ("file",)),
    "unwritable file": (unwritable_file, ("file",)),
    "rank 0 last": (rank0_last, ("tcp", "file")),
    "late rank": (late_rank, ("tcp", "file")),
}


def rows():
    made = []
    for name, (mistake, inits) in MISTAKES.items():
        for init in inits:
            if built("init", init):
                made.append(Row(f"rendezvous: {name}, {init}", "gloo-tcp", lambda t, m=mistake, i=init: m(t, i),
                                f"{SEEN_S} s+start", most=20, jobs=3))
    return made
