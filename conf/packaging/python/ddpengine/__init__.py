"""Data-parallel training and predictions by the program ddpengine, which this package brings along.

    import ddpengine

    for m in ddpengine.train("run.ini", set={"train.batch_size": 8}, nproc=2):
        if m["event"] == "step":
            print(m["step"], m["loss"])

    model = ddpengine.load("run.ini", "checkpoints")
    logits = model.predict(pixels)      # numpy, array.array or memoryview in, a memoryview out

`train` runs the program and gives the lines of its metrics.jsonl as they come; `load` and `predict` run a trained model in this
process. The keys of an INI and the fields of metrics are those of the program: `ddpengine help`, docs/metrics.md.

Whatever fails raises `Error`, with the program's own line and its exit code. The package needs no other one."""
from ._infer import Model, Tensor, load, predict
from ._program import Error, program, version
from ._run import Run, train

__all__ = ["Error", "Model", "Run", "Tensor", "load", "predict", "program", "train", "version"]
__version__ = version()
