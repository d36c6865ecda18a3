"""A rank that stands still: with peer_timeout 3 s the others leave with exit 6 within 4 s and name it; after a pause of 1.5 s
the run goes on and ends with the same bits as an undisturbed one."""
import os
import re
import signal
import threading
import time

from trial import SLOW, Row, backends

PEER_TIMEOUT_S, STOPPED_S, PAUSE_S = 3, 4, 1.5
GROUP = {"group": {"peer_timeout": f"{PEER_TIMEOUT_S}s"}}


def stop(t, pid, what):
    time.sleep(t.rng.uniform(0, 0.5))
    t.tell(what)
    os.kill(pid, signal.SIGSTOP)
    return time.monotonic()


def stopped_of_hand(t, world):
    ranks = t.ranks(world, GROUP, t.paced(10000000, 5))
    t.trains(ranks[0], "r0")
    victim = t.rng.randrange(world)
    began = stop(t, ranks[victim].pid, f"{world} ranks by hand: rank {victim} stands still")
    for e in t.all_end([p for r, p in ranks.items() if r != victim], STOPPED_S, began):
        t.one_error(e, 6, re.compile(rf"\brank {victim}\b"), "peer_timeout")
    os.kill(ranks[victim].pid, signal.SIGCONT)
    code = ranks[victim].wait(20 * SLOW)
    t.check(code in (5, 6), f"the rank that stood still left with {code}: {t.log(ranks[victim])}")


def stopped_of_family(t, world):
    job = t.family(world, GROUP, t.paced(10000000, 5))
    kids = t.kids(job, world)
    t.trains(job, "job")
    victim = t.rng.randrange(world)
    began = stop(t, kids[victim], f"--nproc {world}: rank {victim}, pid {kids[victim]}, stands still")
    others = [k for k in kids if k != kids[victim]]
    t.all_gone(others, STOPPED_S, began, "the other ranks")
    took = t.worst
    ended, = t.all_end([job], STOPPED_S + 3, began)
    t.one_error(ended, 6, re.compile(rf"\brank {victim}\b"), "peer_timeout")
    t.worst = took


def stopped(t):
    (stopped_of_hand, stopped_of_family)[t.seed % 2](t, t.rng.randrange(2, 5))
    t.nothing_left()


_bits, _bits_lock = {}, threading.Lock()
EPOCHS, BETWEEN_MS = 250, 10


def undisturbed(t, world):
    """The bits of the same run when nobody touches it; once a world and backend."""
    with _bits_lock:
        if (t.backend, world) not in _bits:
            job = t.spawn("calm", "-c", t.config("calm", GROUP, t.paced(EPOCHS, BETWEEN_MS),
                                                 {"sampler.paced": {"gate": t.dir}}), "--nproc", world)
            t.equal(job.wait(60 * SLOW), 0, t.log(job))
            _bits[t.backend, world] = t.sha("calm")
        return _bits[t.backend, world]


def paused(t):
    world = t.rng.randrange(2, 5)
    expected = undisturbed(t, world)
    if t.seed % 2 == 0:
        ranks = t.ranks(world, GROUP, t.paced(EPOCHS, BETWEEN_MS))
        pids, all_of_them, name = [p.pid for p in ranks.values()], list(ranks.values()), "r0"
    else:
        all_of_them, name = [t.family(world, GROUP, t.paced(EPOCHS, BETWEEN_MS))], "job"
        pids = t.kids(all_of_them[0], world)
    t.trains(all_of_them[0], name)
    victim = t.rng.randrange(world)
    stop(t, pids[victim], f"world {world}, {name}: rank {victim}, pid {pids[victim]}, pauses for {PAUSE_S} s")
    time.sleep(PAUSE_S)
    os.kill(pids[victim], signal.SIGCONT)
    time.sleep(0.1)
    t.go()
    for p in all_of_them:
        code = p.wait(60 * SLOW)
        t.in_time(code != 6, f"{p.name} takes a pause of {PAUSE_S} s for more than the {PEER_TIMEOUT_S} s of peer_timeout")
        t.equal(code, 0, t.log(p))
    t.equal(t.sha(name), expected, "not the bits of an undisturbed run")
    t.nothing_left()


def rows():
    here = [b for b in backends() if b != "mpi"]
    return [Row("SIGSTOP of a rank", b, stopped, f"{STOPPED_S} s", most=50, jobs=4) for b in here] + \
           [Row(f"a pause of {PAUSE_S} s", b, paused, "same bits", most=50, jobs=4) for b in here]
