"""kill -9 of a random rank at a random moment: every survivor leaves with exit 5 within 2 s and names that rank; no process,
no shared memory and no file is left."""
import os
import re
import shutil
import signal
import time

from trial import LONG, Row, Skip, backends, children_of, gone

LIMIT_S = 2
# Nearly always in an evaluation; nearly always writing a checkpoint.
EVALUATION = {"train": {"epochs": 10000000, "eval_every": 1}, "data.synthetic": {"samples": 64}, "eval": {"plugin": "synthetic"},
              "eval.synthetic": {"samples": 20000, "shape": 12, "classes": 4, "seed": 2}}


def saving(t):
    return {"train": {"epochs": 10000000}, "checkpoint": {"dir": t.dir / "ck", "every": 1, "keep": 2}}


MOMENTS = ("training", "rendezvous", "evaluation", "saving")


def kill(t, pid, what):
    t.tell(what)
    os.kill(pid, signal.SIGKILL)
    return time.monotonic()


def layers_of(t, moment):
    return {"evaluation": EVALUATION, "saving": saving(t)}.get(moment, LONG)


def of_hand(t, moment, world):
    """Ranks that nobody supervises; each has to find out by itself. Of a rendezvous the last rank is missing."""
    here = range(world - 1) if moment == "rendezvous" else range(world)
    ranks = t.ranks(world, {"group": {"rendezvous_timeout": "20s" if moment == "rendezvous" else "60s"}}, layers_of(t, moment),
                    only=here, init=t.rng.choice(("tcp", "file")))
    victim = t.rng.randrange(len(here))
    if moment == "rendezvous":  # when its line says that it waits for others, a rank has been heard
        for r, p in ranks.items():
            t.seen(p, f"waiting at .* for rank {world - 1} of" if r == 0 else "is there, other ranks are missing")
    else:
        t.trains(ranks[0], "r0")
        time.sleep(t.rng.uniform(0, 0.4))
    killed = kill(t, ranks[victim].pid, f"{world} ranks by hand, {moment}: kill -9 of rank {victim}")
    ended = t.all_end([p for r, p in ranks.items() if r != victim], LIMIT_S, killed)
    for e in ended:
        t.one_error(e, 5, re.compile(rf"\brank {victim} on host"))
        others = {int(r) for r in re.findall(r"\brank (\d+) on host", e.errors()[0])}
        t.equal(others, {victim}, e.errors()[0])
    ranks[victim].wait()


def of_family(t, moment, world):
    """Under --nproc, whose supervisor speaks for all. Instead of a rendezvous: any moment from the start on."""
    job = t.family(world, layers_of(t, moment))
    kids = t.kids(job, world)
    victim = t.rng.randrange(world)
    if moment != "rendezvous":
        t.trains(job, "job")
    time.sleep(t.rng.uniform(0, 0.05 if moment == "rendezvous" else 0.4))
    killed = kill(t, kids[victim], f"--nproc {world}, {moment}: kill -9 of rank {victim}, pid {kids[victim]}")
    ended, = t.all_end([job], LIMIT_S, killed)
    t.one_error(ended, 5, f"rank {victim} (pid {kids[victim]})", "killed by signal 9")


MPIRUN_S = 3  # after a rank has ended badly mpirun takes one or two seconds of its own, whatever the other ranks do
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def number_of(pid):
    """Rank of a process that mpirun has started; their order is not that of their numbers."""
    with open(f"/proc/{pid}/environ", "rb") as f:
        return int(re.search(rb"OMPI_COMM_WORLD_RANK=(\d+)", f.read())[1])


def under_mpirun(t):
    """By --nproc, which calls mpirun, or by mpirun itself: the job's log names the rank, and all are gone. (A rank that is not
    known yet is mpirun's affair alone, so not during the rendezvous.)"""
    moment = t.rng.choice([m for m in MOMENTS if m != "rendezvous"])
    world = t.rng.randrange(2, 5) if t.scale == 1 else 2  # its ranks spin while they wait, so many of them are slow
    if t.seed % 2 == 0:
        job = t.family(world, layers_of(t, moment))
        launcher, = t.kids(job, 1)
    else:
        job = t.spawn("job", "-c", t.config("job", layers_of(t, moment)), env=ROOT,
                      command=["mpirun", "--oversubscribe", "--bind-to", "none", "-np", world])
        launcher = job.pid
    t.trains(job, "job")
    pids = {number_of(pid): pid for pid in children_of(launcher)}
    t.equal(sorted(pids), list(range(world)))
    time.sleep(t.rng.uniform(0, 0.4))
    victim = t.rng.randrange(world)
    killed = kill(t, pids[victim], f"mpi, {world} ranks, {moment}: kill -9 of rank {victim}, pid {pids[victim]}")
    t.all_gone(pids.values(), LIMIT_S, killed, "the ranks")
    t.until(lambda: gone(job.pid), "mpirun is gone", LIMIT_S + MPIRUN_S)
    job.wait()
    log = t.log(job)
    errors = [line for line in log.splitlines() if ": error: " in line]
    t.equal({int(r) for line in errors for r in re.findall(r"\brank (\d+) on host", line)}, {victim}, errors)
    t.check(job.returncode == 5 if t.seed % 2 == 0 else job.returncode != 0, f"exit {job.returncode}")
    t.nothing_left()


def mpirun_is_there():
    if shutil.which("mpirun") is None:
        raise Skip("mpirun is not installed (openmpi-bin)")


def trial(t):
    form = (of_hand, of_family)[t.seed % 2]
    moment = MOMENTS[t.seed // 2 % len(MOMENTS)]
    world = t.rng.randrange(3 if moment == "rendezvous" else 2, 5)
    form(t, moment, world)
    t.nothing_left()


def rows():
    return [Row("kill -9 of a rank", b, under_mpirun if b == "mpi" else trial, f"{LIMIT_S} s", alone=True,
                needs=mpirun_is_there if b == "mpi" else lambda: None) for b in backends()]
