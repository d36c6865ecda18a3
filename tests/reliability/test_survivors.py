"""The short trials of survivors.py for `make check-long`, shorter still."""
import os
import sys

import survivors

SEED = int(os.environ.get("DDPENGINE_RELIABILITY_SEED", "1"))


def main():
    survivors.prepare()
    tried = survivors.run(survivors.SHORT, SEED, os.cpu_count() or 1, sys.argv[1:], "# ")
    print(f"1..{len(tried)}")
    for number, p in enumerate(tried, 1):
        print(f"{'not ok' if p.failed else 'ok'} {number} {p.name}{f' # SKIP {p.note}' if p.skipped else ''}\n# {p.seconds:.2f} s", flush=True)
    return 1 if any(p.failed for p in tried) else 0


if __name__ == "__main__":
    sys.exit(main())
