#!/usr/bin/env python3
"""Writes vectors/curves.json: the loss of every step of PyTorch DDP's runs that test_curve.py compares the engine with.
Needs torch over OpenBLAS (Debian: python3-torch, libopenblas0-pthread) and dataset-fashion-mnist; minutes. Run with the
interpreter that has torch:

    /usr/bin/python3 tests/parity/make_curves.py

Every run is made under two of OpenBLAS's kernels; "self_difference" is the largest relative difference between the two, which
is how nearly PyTorch agrees with itself. The seed is one under which it does: where a ReLU's input comes within rounding of
zero, one BLAS kernel lets it pass and another does not, and two PyTorch runs part by up to 5e-5 within 200 steps (seeds 0, 1)."""
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
KERNELS = ("SkylakeX", "Haswell")
RUNS = {
    "plain": ["--steps", "200", "--lr", "0.01"],
    "momentum": ["--steps", "10", "--lr", "0.05", "--momentum", "0.9"],
    "adamw": ["--steps", "10", "--lr", "0.001", "--optimizer", "adamw", "--weight-decay", "0.01"],
    "accuracy": ["--epochs", "5", "--lr", "0.05", "--momentum", "0.9", "--eval"],
}


def run(args, world, kernel):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OPENBLAS_CORETYPE": kernel}
    r = subprocess.run([sys.executable, str(HERE / "torch_mlp.py"), "--world", str(world), "--seed", "2", *args], check=True,
                       capture_output=True, text=True, env=env)
    return json.loads(r.stdout)


def main():
    out = {}
    for name, args in RUNS.items():
        for world in (1, 2):
            a, b = (run(args, world, k) for k in KERNELS)
            keep = {"torch": a["torch"], "arguments": args, "world": world, "seed": 2, "initial_sha256": a["initial_sha256"],
                    "self_difference": max(abs(x - y) / y for x, y in zip(a["losses"], b["losses"]))}
            if name == "accuracy":
                keep["accuracy"] = a["accuracy"]
            else:
                keep["losses"] = a["losses"]
            out[f"{name}-{world}"] = keep
            print(name, world, keep["self_difference"], a.get("accuracy"), b.get("accuracy"), flush=True)
    (HERE / "vectors/curves.json").write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
