"""A short trial of each program of runs that survive: restart.py, all_off.py, soak.py and power_loss.py, so that they cannot rot.
`make survive`; as a test of `make check-long` it is a shorter form, which prints TAP.

They run side by side, since they wait most of the time. A part's output is shown when it has ended; last comes one line a part with what
passed, failed and was skipped, why, and its seconds. How soon and how much of the time was of use decides nothing here: the programs
themselves, with their defaults, measure that."""
import argparse
import contextlib
import os
import random
import signal
import sys
import time

import survive  # noqa: F401 -- finds harness
import harness
import parts
import power_loss
from parts import HERE, Part, Parts

LIMIT_S = 600  # of a part


class Size:
    """How much of each; `epochs` of a run of 20 updates each, 0: as many as the program says."""

    def __init__(self, epochs, offs, minutes, every, cuts):
        self.epochs, self.offs, self.minutes, self.every, self.cuts = epochs, offs, minutes, every, cuts


FULL, SHORT = Size(0, 3, 0.5, 5, 5), Size(100, 1, 0.3, 3, 1)


def not_built(backend):
    there = (harness.BUILD / f".libs/backend_{backend.replace('-', '_')}.so").exists()
    return None if there else f"backend {backend} is not built"


def all_parts(size, seed):
    """(part, why it cannot be tried here, or None)"""
    def part(name, weight, *command):
        return Part(name, [sys.executable, HERE / command[0], "--seed", seed, *command[1:]], weight, by_exit=True)

    return [*((part(f"restart, kill, {b}", 8, "restart.py", "--trials", 1, "--backends", b, "--faults", "kill"), not_built(b))
              for b in ("gloo-tcp", "shm")),
            (part("all_off, gloo-tcp", 9, "all_off.py", "--offs", size.offs, "--backends", "gloo-tcp"), not_built("gloo-tcp")),
            (part("soak, gloo-tcp", 10, "soak.py", "--minutes", size.minutes, "--every", size.every, "--least", 0), not_built("gloo-tcp")),
            (part("power_loss, shm", 3, "power_loss.py", "--trials", size.cuts), not_built("shm") or power_loss.missing())]


def run(size, seed, jobs, only=(), prefix=""):
    """The parts, when all have been tried."""
    if size.epochs:
        os.environ["DDP_SURVIVE_EPOCHS"] = str(size.epochs)
    chosen = [(p, why) for p, why in all_parts(size, seed) if not only or any(o in p.name for o in only)]
    for p, why in chosen:
        if why:
            p.skipped, p.note = 1, why
    Parts(LIMIT_S, prefix).run([p for p, why in chosen if not why], jobs)
    return [p for p, _ in chosen]


def long_test():
    tried = run(SHORT, int(os.environ.get("DDPENGINE_RELIABILITY_SEED", "1")), os.cpu_count() or 1, sys.argv[1:], "# ")
    print(f"1..{len(tried)}")
    for number, p in enumerate(tried, 1):
        print(f"{'not ok' if p.failed else 'ok'} {number} {p.name}{f' # SKIP {p.note}' if p.skipped else ''}")
        print(f"# {p.seconds:.2f} s", flush=True)
    return 1 if any(p.failed for p in tried) else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="parts whose name has this text; may be repeated")
    parser.add_argument("--seed", type=int, default=None, help="of each program")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="parts at a time")
    args = parser.parse_args()
    seed, began = args.seed if args.seed is not None else random.SystemRandom().randrange(1 << 32), time.monotonic()
    tried = run(FULL, seed, max(1, args.jobs), args.only)
    if not tried:
        sys.exit("no such part")
    print(f"\n{parts.table(tried)}")
    failed = sum(p.failed for p in tried)
    print(f"{sum(p.passed for p in tried)} passed, {failed} failed, {sum(p.skipped for p in tried)} skipped in "
          f"{time.monotonic() - began:.0f} s, seed {seed}")
    return 1 if failed else 0


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, parts.interrupted)
    with contextlib.suppress(BrokenPipeError):
        sys.exit(long_test() if harness.LONG else main())
