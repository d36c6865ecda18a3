#!/usr/bin/env python3
"""Writes vectors/curves.json: the loss of every step of PyTorch DDP's runs that test_curve.py compares the engine with.
Needs torch (Debian: python3-torch) and dataset-fashion-mnist; minutes. Run with the interpreter that has torch:

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 /usr/bin/python3 tests/parity/make_curves.py"""
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
RUNS = {
    "plain": ["--steps", "200", "--lr", "0.01"],
    "momentum": ["--steps", "10", "--lr", "0.05", "--momentum", "0.9"],
    "adamw": ["--steps", "10", "--lr", "0.001", "--optimizer", "adamw", "--weight-decay", "0.01"],
    "accuracy": ["--epochs", "5", "--lr", "0.05", "--momentum", "0.9", "--eval"],
}


def main():
    out = {}
    for name, args in RUNS.items():
        for world in (1, 2):
            r = subprocess.run([sys.executable, str(HERE / "torch_mlp.py"), "--world", str(world), *args], check=True,
                               capture_output=True, text=True)
            d = json.loads(r.stdout)
            keep = {"torch": d["torch"], "arguments": args, "world": world, "initial_sha256": d["initial_sha256"]}
            if name == "accuracy":
                keep["accuracy"] = d["accuracy"]
            else:
                keep["losses"] = d["losses"]
            out[f"{name}-{world}"] = keep
            print(name, world, d["losses"][-1], d.get("accuracy"), flush=True)
    (HERE / "vectors/curves.json").write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
