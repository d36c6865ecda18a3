"""onnx_live.py BUILD INI WEIGHTS FILE.onnx: onnx.checker takes the file, and onnxruntime's outputs are within 1e-4 of this
engine's, for batches of 1 and 7. Needs onnx, onnxruntime and numpy."""
import pathlib
import sys

import numpy
import onnx
import onnxruntime
from infer_library import Model

build, ini, weights, path = map(pathlib.Path, sys.argv[1:])
onnx.checker.check_model(str(path), full_check=True)
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
model = Model(build, ini, weights)
random = numpy.random.default_rng(1)
for batch in (1, 7):
    shape = model.inputs[0].shape(batch)
    x = random.integers(0, 200, shape) if model.inputs[0].dtype == 2 else random.standard_normal(shape).astype(numpy.float32)
    ours = numpy.array(model.run(batch, x.tobytes()))
    theirs = session.run(None, {model.inputs[0].name.decode(): x})[0].reshape(-1)
    difference = numpy.abs(ours - theirs).max()
    print(f"batch {batch}: {ours.size} outputs up to {numpy.abs(theirs).max():.3g}, difference {difference:.3g}")
    if not difference <= 1e-4:
        sys.exit("more than 1e-4")
