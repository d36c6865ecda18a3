"""A trial of every row of the reliability table, for `make check-long`; `make reliability` runs many."""
import concurrent.futures
import os
import sys

os.environ.setdefault("DDP_RELIABILITY_SLOW", "20")  # what happens decides; `make reliability` measures how soon
import run  # noqa: E402
from trial import PLUGINS  # noqa: E402

SEED = int(os.environ.get("DDPENGINE_RELIABILITY_SEED", "1"))

TRIALS = int(os.environ.get("DDPENGINE_RELIABILITY_TRIALS", "1"))
SCALE = 0.1  # of the numbers of connections and the like


def main():
    run.private_places()
    rows = run.chosen(run.all_rows(), [], sys.argv[1:])
    alone, together = [r for r in rows if r.alone], [r for r in rows if not r.alone]
    print(f"1..{len(rows)}", flush=True)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        def one(row):
            return run.run_row(row, min(TRIALS, row.most), SEED, 1, SCALE)
        outcomes = [one(r) for r in alone] + list(pool.map(one, together))
    for number, out in enumerate(outcomes, 1):
        title = f"{number} {out.row.name}, {out.row.backend}"
        failed += len(out.failed)
        if out.skipped is not None:
            print(f"ok {title} # SKIP {out.skipped}")
            continue
        print(f"{'not ok' if out.failed else 'ok'} {title}")
        run.print_failures(out, prefix="# ")
        print(f"# {out.seconds:.2f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    finally:
        PLUGINS.close()
