#!/usr/bin/env python3
"""How a run survives the loss of a rank, over and over: at a random time a random rank, rank 0 included, is killed or stopped, or its
link is cut.

    tests/reliability/restart.py [--trials 50] [--backends gloo-tcp,shm,mpi] [--faults kill,stop,cut,replaced,away] [--seed N]
                                 [--torch PYTHON,...]

For each backend and fault: how many runs ended with the parameters of the run that lost nobody, the time from the line that says a
rank is lost to the first new step (seconds: median and longest; metrics.jsonl is written four times a second), and the updates that
were made again.

The links are those of hosts as network namespaces, with a supervisor each. `cut`: for 1 to 8 s, shorter and longer than peer_timeout.
`replaced`: for good, and after 1 to 3 s the same command is started on another host, which has the same address, or another one where
it is not rank 0's. `away`: for longer than rejoin_timeout, and each command that gives up is started again, as systemd does. Their time
is from the link's return, or the new host's start, if the loss was known before. Only gloo-tcp has links: shm is within a host, and the
ranks that mpirun starts again are all on this one.

--torch: Pythons with PyTorch, whose torchrun --max-restarts=3 is killed and stopped in the same way (beside.py); its time is from the
fault itself."""
import os
import signal
import sys
import time

import beside
import links
from survive import EVERY, PEER_TIMEOUT, RANKS, STEP, Trial, arguments, harness, ranks_of, seeded, text, undisturbed

LOST = r"wait for the lost one|was killed by signal|has been stopped|all ranks are started again"


def one(backend, fault, rng, span):
    """(hash, seconds to the first new step, updates made again), or None where the run was over before the fault."""
    t = Trial()
    try:
        p = t.begin(backend, "fault")
        harness.until(lambda: t.when(STEP)[0] or p.poll() is not None, "does not train")
        time.sleep(rng.uniform(0, 0.7 * span))
        ranks = ranks_of(p, backend)
        if len(ranks) < RANKS or p.poll() is not None:
            return None
        before, struck = t.starts_and_steps()[0], time.monotonic()
        os.kill(rng.choice(ranks), signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
        known = harness.until(lambda: t.when(LOST, struck)[0] or p.poll() is not None and 1.0, "the fault stays unknown")
        stepped = t.first_new_step(before, lambda: p.poll() is None)
        if t.ended(p) != [0]:
            print(t.last_lines(), flush=True)
            return f"exit {p.returncode}", None, None
        t.no_processes_left(t.dir)
        return t.sha(), None if stepped is None else stepped - known, t.updates_again(struck)
    finally:
        t.close()


def row(backend, fault, trials, rng, want, span):
    good = tried = 0
    seconds, again = [], []
    while tried < trials:
        result = links.one(fault, rng, span) if fault in links.FAULTS else one(backend, fault, rng, span)
        if result is None:
            continue
        tried += 1
        good += result[0] == want
        seconds.append(result[1])
        again.append(result[2])
    print(f"{backend:9} {fault:8} {good:3} of {tried:3}   first new step after {text(seconds, '%.2f')} s   "
          f"updates again {text(again, '%d')}   without a loss {sum(s is None for s in seconds)}", flush=True)
    return good == tried


def main():
    a = arguments(__doc__)
    a.add_argument("--trials", type=int, default=50)
    a.add_argument("--backends", default="gloo-tcp,shm,mpi")
    a.add_argument("--faults", default="kill,stop,cut,replaced,away")
    a.add_argument("--torch", default="")
    a.add_argument("--torch-patience", type=float, default=120)
    a = a.parse_args()
    seed, rng = seeded(a)
    print(f"seed {seed}, {RANKS} ranks, a checkpoint every {EVERY} updates, peer_timeout {PEER_TIMEOUT} s", flush=True)
    faults, good = a.faults.split(","), []
    if "gloo-tcp" in a.backends and set(links.FAULTS) & set(faults) and (why := links.missing()):
        print(f"no link can be cut: {why}; --faults kill,stop leaves that out")
        return 1
    for backend in a.backends.split(","):
        want, span, _ = undisturbed(backend)  # MPI adds in an order of its own
        good += [row(backend, fault, a.trials, rng, want, span) for fault in faults
                 if backend == "gloo-tcp" or fault in ("kill", "stop")]
    for python in filter(None, a.torch.split(",")):
        for fault in [f for f in faults if f in ("kill", "stop")]:
            beside.row(python, fault, a.trials, rng, a.torch_patience)
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
