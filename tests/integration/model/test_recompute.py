"""[train] recompute: blocks of a transformer are computed again for their gradients. The parameters are the same to the last bit,
and --check says how many blocks there are and what it saves."""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import harness  # noqa: E402
from harness import Case  # noqa: E402

TEXT = {"files": "/usr/share/common-licenses/GPL-3", "context": 64}
GPT = {"model": {"plugin": "gpt2"}, "model.mlp": None, "data": {"plugin": "tokens"}, "data.synthetic": None, "data.tokens": TEXT,
       "model.gpt2": {"preset": "bytes", "layers": 5, "width": 32, "heads": 2, "dropout": 0.1},
       "train": {"batch_size": 4, "max_steps": 3, "epochs": 1},
       "optimizer": {"algorithm": "adamw", "lr": 0.0006, "momentum": None}}


class Recompute(Case):
    def plan(self, name, expect=0, **train):
        return self.train(GPT, {"train": train}, args=["--check"], name=f"plan-{name}", expect=expect)

    def saved(self, r):
        m = re.search(r"recompute +(\d+) of (\d+) blocks, activations of a micro-batch ([0-9.]+) (\S+) instead of ([0-9.]+) (\S+)", r.out)
        self.check(m, r.out)
        unit = {"KiB": 1.0, "MiB": 1024.0}
        return int(m[1]), int(m[2]), float(m[3]) * unit[m[4]], float(m[5]) * unit[m[6]]

    def test_same_bits_in_less_memory(self):
        self.check("of 5 blocks" not in self.plan("no").out)
        done, blocks, less, kept = self.saved(self.plan("blocks", recompute="blocks"))
        self.equal((done, blocks), (5, 5))
        self.check(less < 0.75 * kept, (less, kept))
        bound = f"{int((less + kept) / 2)}KiB"
        done, blocks, some, same = self.saved(self.plan("auto", recompute="auto", activation_memory=bound))
        self.check(0 < done < 5 and less <= some <= (less + kept) / 2 and same == kept, (done, less, some, kept))
        self.equal(self.saved(self.plan("ample", recompute="auto", activation_memory="1GiB"))[0], 0)
        runs = [self.train(GPT, {"train": way}, name=f"run{i}")
                for i, way in enumerate(({}, {"recompute": "blocks"}, {"recompute": "auto", "activation_memory": bound, "accumulate": 1}))]
        for r in runs[1:]:
            self.equal(r.summary["parameter_sha256"], runs[0].summary["parameter_sha256"])

    def test_refused(self):
        self.fails(self.plan("unbound", recompute="auto", expect=2), 2, "recompute = auto needs activation_memory")
        self.fails(self.plan("tight", recompute="auto", activation_memory="10KiB", expect=2), 2, "activation_memory is 10",
                   "all 5 blocks are recomputed", "batch_size")


if __name__ == "__main__":
    sys.exit(harness.main(Recompute))
