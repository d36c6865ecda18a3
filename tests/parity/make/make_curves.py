#!/usr/bin/env python3
"""Writes vectors/curves.json: the loss of every step of PyTorch DDP's runs that test_curve.py compares the engine with.
Needs torch over OpenBLAS (Debian: python3-torch, libopenblas0-pthread) and dataset-fashion-mnist; minutes. Run with the
interpreter that has torch:

    /usr/bin/python3 tests/parity/make/make_curves.py

Every run is made under two of OpenBLAS's kernels; "self_difference" is the largest relative difference between the two, which
is how nearly PyTorch agrees with itself. The seed is the first under which it does, to AGREES: where a ReLU's input comes
within rounding of zero, one BLAS kernel lets it pass and another does not, and two PyTorch runs part by up to 5e-5 within 200
steps (AdamW, whose first steps go by the sign of a gradient, by 4e-4 within 10)."""
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parents[1]
KERNELS = ("SkylakeX", "Haswell")
AGREES = 5e-7
RUNS = {
    "plain": ["--steps", "200", "--lr", "0.01"],
    "momentum": ["--steps", "10", "--lr", "0.05", "--momentum", "0.9"],
    "adamw": ["--steps", "10", "--lr", "0.001", "--optimizer", "adamw", "--weight-decay", "0.01"],
}
ACCURACY = ["--epochs", "5", "--lr", "0.05", "--momentum", "0.9", "--eval"]


def run(args, world, seed, kernel):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OPENBLAS_CORETYPE": kernel}
    r = subprocess.run([sys.executable, str(HERE / "torch_mlp.py"), "--world", str(world), "--seed", str(seed), *args], check=True,
                       capture_output=True, text=True, env=env)
    return json.loads(r.stdout)


def reference(name, args, world):
    for seed in range(20):
        a, b = (run(args, world, seed, k) for k in KERNELS)
        own = max(abs(x - y) / y for x, y in zip(a["losses"], b["losses"]))
        print(f"{name}, world {world}, seed {seed}: PyTorch from itself {own:.1e}", flush=True)
        if own <= AGREES:
            return {"torch": a["torch"], "arguments": args, "world": world, "seed": seed, "initial_sha256": a["initial_sha256"],
                    "self_difference": own, "losses": a["losses"]}
    raise SystemExit(f"{name}, world {world}: PyTorch does not agree with itself under any seed")


def main():
    out = {f"{name}-{world}": reference(name, args, world) for name, args in RUNS.items() for world in (1, 2)}
    out["accuracy-2"] = {"arguments": ACCURACY, "world": 2,
                         "accuracy": [run(ACCURACY, 2, seed, KERNELS[0])["accuracy"] for seed in range(3)]}  # seeds 0, 1, 2
    (HERE / "vectors/curves.json").write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
