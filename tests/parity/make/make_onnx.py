#!/usr/bin/env python3
"""Writes tests/parity/vectors/onnx.json, the hashes of the ONNX files of test_export.py, once onnx.checker takes each of them and
onnxruntime computes the engine's outputs from it. Run it by a Python with onnx, onnxruntime and numpy, with DDP_BUILDDIR set."""
import hashlib
import json
import os
import pathlib
import sys

SRC = pathlib.Path(__file__).resolve().parents[3]
os.environ.setdefault("DDP_SRCDIR", str(SRC))
sys.path.insert(0, str(SRC / "tests/integration/model"))
import test_export  # noqa: E402

case = test_export.Export()
stored = {}
for name, weights, data in case.files():
    case.live(name, weights)
    stored[name] = hashlib.sha256(data).hexdigest()
    print(name, stored[name])
case.close()
(SRC / "tests/parity/vectors/onnx.json").write_text(json.dumps(stored, indent=1) + "\n")
