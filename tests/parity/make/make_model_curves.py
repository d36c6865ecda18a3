#!/usr/bin/env python3
"""Writes vectors/model_curves.json: PyTorch's loss in every step of the runs that test_model_curves.py compares the engine with.
Needs torch over OpenBLAS (Debian: python3-torch, libopenblas0-pthread) and dataset-fashion-mnist; minutes. Run with the
interpreter that has torch; names choose among the runs and leave the others as they are:

    /usr/bin/python3 tests/parity/make/make_model_curves.py [two_conv] [resnet] [gpt2]

Each run is made in five ways that round differently: OpenBLAS's kernels for three processors, two threads, and PyTorch's own
kernels without AVX. "self_difference" is the largest relative difference of any from the first in all steps, "early_difference"
in the first EARLY, in two digits. Sooner or later a ReLU's input or the first of two in a pool comes within rounding of a tie, and
the runs part; batch norm amplifies that until nothing but the trend is left of a curve. The seed is the first under which they
agree to AGREES in as many steps as the run says: in all, but for the resnet, where no seed does."""
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parents[1]
STORED = HERE / "vectors/model_curves.json"
AGREES = 3e-6
STEPS, EARLY = 100, 3
WAYS = (  # OpenBLAS's kernel, threads, PyTorch's own kernels
    ("SkylakeX", 1, "avx2"), ("SkylakeX", 1, "default"), ("Haswell", 1, "avx2"), ("Prescott", 1, "avx2"), ("SkylakeX", 2, "avx2"))
# the arguments of torch_train.py, and the steps in which PyTorch has to agree with itself
RUNS = {
    "two_conv": (["lenet", '{"variant": "two_conv", "dropout1": 0.0, "dropout2": 0.0}', "--data", "fashion", "--batch", "32",
                  "--lr", "0.01"], STEPS),
    "resnet": (["resnet", '{"stem": "cifar", "width": 8, "classes": 10}', "--data", "fashion", "--batch", "16", "--lr", "0.001"],
               EARLY),
    "gpt2": (["gpt2", '{"layers": 2, "width": 64, "heads": 4, "context": 64, "vocabulary": 256}', "--data",
              "/usr/share/common-licenses/GPL-3", "--context", "64", "--batch", "8", "--optimizer", "adamw", "--lr", "0.0003",
              "--betas", "0.9", "0.95", "--weight-decay", "0.1"], STEPS),
}


def run(args, seed, way):
    kernel, threads, own = way
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads), "OPENBLAS_CORETYPE": kernel,
           "ATEN_CPU_CAPABILITY": own}
    r = subprocess.run([sys.executable, str(HERE / "torch_train.py"), *args, "--steps", str(STEPS), "--seed", str(seed),
                        "--threads", str(threads)], stdout=subprocess.PIPE, check=True, text=True, env=env)
    return json.loads(r.stdout)


def differences(ours, theirs):
    return [abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True)]


def reference(name):
    args, needed = RUNS[name]
    for seed in range(20):
        first, apart = run(args, seed, WAYS[0]), [0.0] * STEPS
        for way in WAYS[1:]:
            apart = [max(d) for d in zip(apart, differences(run(args, seed, way)["losses"], first["losses"]), strict=True)]
            if max(apart[:needed]) > AGREES:
                break
        print(f"{name}, seed {seed}: PyTorch from itself {max(apart[:EARLY]):.1e} in {EARLY} steps, {max(apart):.1e} in all",
              flush=True)
        if max(apart[:needed]) <= AGREES:
            return {"torch": first["torch"], "arguments": args, "seed": seed,
                    "early_difference": float(f"{max(apart[:EARLY]):.1e}"), "self_difference": float(f"{max(apart):.1e}"),
                    "losses": first["losses"]}
    raise SystemExit(f"{name}: PyTorch does not agree with itself under any seed")


def main():
    out = json.loads(STORED.read_text()) if STORED.exists() else {}
    for name in sys.argv[1:] or RUNS:
        out[name] = reference(name)
        STORED.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
