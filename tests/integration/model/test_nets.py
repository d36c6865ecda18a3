"""Model `layers`: nets in files give the bits of the plugins in C, their mistakes have a line, and ranks with different nets
are told apart."""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import SRC, Case, long_case, seldom  # noqa: E402

MLP = "[flatten]\n[linear] out = 8\n[relu]\n[linear] out = 4\n[loss] type = cross_entropy\n[metric] type = accuracy\n"


def data(shape, samples, classes=10):
    return {"data.synthetic": {"shape": shape, "samples": samples, "classes": classes}}


class Nets(Case):
    def net(self, name, text):
        path = self.dir / name
        path.write_text(text)
        return {"model": {"plugin": "layers"}, "model.mlp": None, "model.layers": {"net": path}}

    # ---- the bits of the plugins in C -------------------------------------------------------------------------------
    def same(self, net, model, options, *layers, steps=100, change=lambda text: text):
        """The .net of conf/nets against the plugin in C: on one rank and on two, parameters and what is evaluated."""
        ours = self.net(net, change((SRC / "conf/nets" / net).read_text()))
        theirs = {"model": {"plugin": model}, "model.mlp": None, f"model.{model}": options}
        for ranks in (0, 2):
            a, b = (self.train(m, *layers, {"train": {"max_steps": steps}}, nproc=ranks, name=f"{n}-{ranks}")
                    for m, n in ((ours, "net"), (theirs, "c")))
            for key in ("parameter_sha256", "buffer_sha256", "final_loss", "parameters"):
                self.equal(a.summary[key], b.summary[key], f"{net}, {ranks} ranks: {key}")
            self.equal(a.summary["steps"], steps)

    @seldom
    def test_mlp(self):
        self.same("mlp.net", "mlp", {"hidden": "512, 512", "input": "image", "classes": 10}, data("1, 6, 6", 64),
                  {"train": {"epochs": 100, "batch_size": 4}})

    def test_lenet(self):
        self.same("lenet.net", "lenet", {}, data("1, 20, 20", 64), {"train": {"epochs": 100, "batch_size": 4}})

    @long_case
    def test_resnet(self):
        self.same("resnet18.net", "resnet", {"stem": "cifar", "classes": 10}, data("3, 8, 8", 64),
                  {"train": {"epochs": 20, "batch_size": 4}}, steps=20)

    @long_case
    def test_gpt2(self):
        text = self.dir / "text.txt"
        text.write_bytes((SRC / "README.md").read_bytes())
        self.same("gpt2-bytes.net", "gpt2", {"preset": "bytes"}, {
            "train": {"epochs": 20, "batch_size": 2}, "data": {"plugin": "tokens"}, "data.synthetic": None,
            "data.tokens": {"files": text, "format": "bytes", "context": 32}}, steps=20)

    def test_small_resnet_and_gpt2(self):
        """The same files, narrowed: what they share with the large ones is all but the widths."""
        def narrow(text):
            return re.sub(r"out = (64|128|256|512)\b", lambda m: f"out = {int(m[1]) // 16}", text)

        self.same("resnet18.net", "resnet", {"stem": "cifar", "classes": 10, "width": 4}, data("3, 8, 8", 32),
                  {"train": {"epochs": 20, "batch_size": 4}}, steps=3, change=narrow)
        text = self.dir / "text.txt"
        text.write_bytes((SRC / "README.md").read_bytes()[:4096])
        self.same("gpt2-bytes.net", "gpt2", {"preset": "bytes", "width": 16}, {
            "train": {"epochs": 20, "batch_size": 2}, "data": {"plugin": "tokens"}, "data.synthetic": None,
            "data.tokens": {"files": text, "format": "bytes", "context": 16}}, steps=3,
            change=lambda t: re.sub(r"(out|features) = (\d+)", lambda m: f"{m[1]} = {int(m[2]) // 16}", t))

    def test_darknet(self):
        """Darknet's classifiers: as many parameters as it counts itself (tests/bench/darknet.py), and a narrow one learns."""
        cifar, alexnet = ((SRC / f"conf/nets/darknet-{n}.net").read_text() for n in ("cifar", "alexnet"))
        for text, shape, classes, parameters in ((cifar, "3, 28, 28", 10, "7,681,674"), (alexnet, "3, 227, 227", 1000, "62,378,344")):
            r = self.run("-c", self.ini("x.ini", self.net("x.net", text), data(shape, 4, classes), {"train": {"batch_size": 1}}), "--check")
            self.check(r.code == 0 and re.search(rf"^parameters +{parameters} in", r.out, re.M), r)
        narrow = re.sub(r"out = (128|256|512)\b", lambda m: f"out = {int(m[1]) // 32}", cifar).replace("p = 0.5", "p = 0.1")
        r = self.train(self.net("x.net", narrow), data("3, 8, 8", 64, 4), {"optimizer": {"lr": 0.1}, "train": {"epochs": 8}})
        steps = [m["loss"] for m in self.metrics(r.dir, "step")]
        self.check(sum(steps[-4:]) < 0.8 * sum(steps[:4]), (steps[:4], steps[-4:]))

    # ---- names ------------------------------------------------------------------------------------------------------
    def names(self, text, pattern=r"(\S+\.(?:weight|bias)) +\S+"):
        r = self.run("-c", self.ini("x.ini", self.net("x.net", text), data("1, 6, 6", 64, 4)), "--check")
        self.equal(r.code, 0, r)
        return re.findall("^  " + pattern, r.out, re.M)

    def test_names(self):
        """Those of torch.nn.Sequential, or those that are given; below a named [repeat] they begin at 0."""
        self.equal(self.names(MLP), ["1.weight", "1.bias", "3.weight", "3.bias"])
        self.equal(self.names("[flatten]\n[repeat]\ntimes = 2\n[linear]\nout = 4\nbias = no\n[relu]\n[end]\n"
                              "[linear] out = 4\n"
                              "[loss] type = cross_entropy\n"), ["1.weight", "3.weight", "5.weight", "5.bias"])
        self.equal(self.names("[flatten]\n[repeat] times = 2, name = h\n[linear] out = 4, bias = no\n"
                              "[linear] out = 4, name = fc\n[end]\n[linear] out = 4, bias = no\n[loss] type = cross_entropy\n"),
                   ["h.0.0.weight", "h.0.fc.weight", "h.0.fc.bias", "h.1.0.weight", "h.1.fc.weight", "h.1.fc.bias", "2.weight"])

    def test_model_as_a_table(self):
        """Numbers that torchinfo has for the same net; what is shared is counted once, what is frozen is named. No device is opened."""
        conv = ("[conv2d] out = 3, kernel = 3, padding = 1, name = c\n[relu]\n[flatten]\n[linear] out = 4, name = head\n"
                "[loss] type = cross_entropy\n")
        r = self.run("model", "-c", self.ini("conv.ini", self.net("a.net", conv), data("2, 8, 8", 16, 4),
                                             {"train": {"device": "cuda:3", "freeze": "c.bias"}}))
        self.equal(r.code, 0, r)
        rows = [line.split() for line in r.out.splitlines()]
        for row in (["image", "field", "(N,", "2,", "8,", "8)"], ["c", "conv2d", "(N,", "3,", "8,", "8)", "57,", "3", "frozen", "0.007"],
                    ["head", "linear", "(N,", "4)", "772", "0.002"], ["parameters", "829,", "3.2", "KiB"], ["frozen", "3"]):
            self.check(row in rows, f"{row}\n{r}")
        gpt = {"model": {"plugin": "gpt2"}, "model.mlp": None, "data": {"plugin": "tokens"}, "data.synthetic": None,
               "model.gpt2": {"preset": "bytes", "layers": 1, "width": 16, "heads": 2, "context": 16},
               "data.tokens": {"files": SRC / "README.md", "context": 16}}
        r = self.run("model", "-c", self.ini("gpt.ini", gpt))
        self.check(re.search(r"^lm_head +linear +\(N, 16, 256\) +shared +0.131$", r.out, re.M), r)
        self.check("parameters            7,664, " in r.out and r.code == 0, r)
        self.fails(self.run("model"), 2, "no config file")
        self.fails(self.run("model", "-c", self.dir / "absent.ini"), 2, "absent.ini: no such file")

    def test_references(self):
        """A name is looked for in the innermost [repeat] first, then outside, up to the whole net."""
        shapes = self.names("[flatten] name = in\n[linear] name = fc, out = 4\n"
                            "[repeat] times = 2, name = a\n[identity] name = m\n[repeat] times = 1, name = b\n"
                            "[linear] name = fc, out = 5\n[linear] name = h, from = fc, out = 6\n[linear] from = in, out = 6\n"
                            "[add] from = h\n[linear] from = m, out = 6\n[add] from = 3\n[end]\n[end]\n"
                            "[linear] from = fc, out = 6\n[add] from = a.1.b.0.5\n"
                            "[linear] out = 4\n[loss] type = cross_entropy\n", r"(\S+weight +\S+)")
        self.equal([" ".join(s.split()) for s in shapes], [
            "fc.weight 4x36", "a.0.b.0.fc.weight 5x4", "a.0.b.0.h.weight 6x5", "a.0.b.0.2.weight 6x36", "a.0.b.0.4.weight 6x4",
            "a.1.b.0.fc.weight 5x6", "a.1.b.0.h.weight 6x5", "a.1.b.0.2.weight 6x36", "a.1.b.0.4.weight 6x6",
            "3.weight 6x4", "5.weight 4x6"])

    def test_mse(self):
        r = self.train(self.net("x.net", "[input] field = input\n[linear] out = 3\n[loss] type = mse\n"),
                       {"data.synthetic": {"shape": 5, "outputs": 3, "classes": 0}})
        self.check(r.summary["final_loss"] < 2, r)

    def test_gate(self):
        """rms_norm, silu and mul, as the feed-forward part of a LLaMA: it trains, and eps arrives."""
        net = ("[flatten]\n[rms_norm] name = norm, eps = 1e-5\n[linear] name = gate, out = 8, bias = no\n[silu] name = s\n"
               "[linear] name = up, from = norm, out = 8, bias = no\n[mul] from = s\n[linear] out = 4\n"
               "[loss] type = cross_entropy\n")
        shapes = self.names(net, r"(\S+weight +\S+)")
        self.equal([" ".join(s.split()) for s in shapes], ["norm.weight 36", "gate.weight 8x36", "up.weight 8x36", "6.weight 4x8"])
        r = self.train(self.net("gate.net", net), data("1, 6, 6", 64, 4), {"train": {"epochs": 20, "batch_size": 8}})
        self.check(r.summary["final_loss"] < 1.0, r)
        self.bad("[flatten]\n[mul]\n[loss] type = cross_entropy\n", "x.net:2:", 'needs a key "from"', "multiplies")

    def test_height_and_width(self):
        """Two numbers where one is both; what pooling leaves."""
        shapes = self.names("[conv2d] out = 3, kernel = 3x5, stride = 2x1, padding = 1x2\n"   # (3, 3, 6)
                            "[max_pool2d] kernel = 1x2\n[avg_pool2d] kernel = 2x1, stride = 1\n"  # (3, 2, 3)
                            "[adaptive_avg_pool2d] out = 2x1\n[flatten]\n[linear] out = 4\n[loss] type = cross_entropy\n",
                            r"(\S+weight +\S+)")
        self.equal([" ".join(s.split()) for s in shapes], ["0.weight 3x1x3x5", "5.weight 4x6"])
        self.bad("[conv2d] out = 3, kernel = 3x\n[loss] type = cross_entropy\n", "x.net:1:", "kernel = 3x", "or two as in 3x5")

    # ---- mistakes ---------------------------------------------------------------------------------------------------
    def bad(self, text, *parts, layers=()):
        r = self.run("-c", self.ini("x.ini", self.net("x.net", text), data("1, 6, 6", 64, 4), *layers), "--check")
        self.fails(r, 2, *parts)

    def test_words(self):
        end = "[loss] type = cross_entropy\n"
        self.bad("[flatten]\n\n[liner] out = 3\n" + end, "x.net:3:", "[liner]", 'did you mean "linear"?')
        self.bad("[fully_connected_layer]\n" + end, "x.net:1:", "docs/nets.md")
        self.bad("[flatten]\n[linear]\nuot = 3\n" + end, "x.net:3:", '[linear] has no key "uot"', 'did you mean "out"?')
        self.bad("[relu] inplace = yes\n" + end, "x.net:1:", '"inplace"', "it has name, from")
        self.bad("[flatten]\n[linear] out = many\n" + end, "x.net:2:", "out = many", "a whole number from 1 to 16777216")
        self.bad("[flatten]\n[linear] out = 2.5\n" + end, "x.net:2:", "out = 2.5", "whole number")
        self.bad("[gelu] approximate = tan\n" + end, "x.net:1:", "approximate = tan", "one of none, tanh")
        self.bad("[conv2d] out = 3\n" + end, "x.net:1:", '[conv2d] needs a key "kernel"')
        self.bad("[flatten]\n[linear] bias = no\n" + end, "x.net:2:", 'needs a key "out"', '"tied"')
        self.bad("[flatten]\n[linear] out = 3\nout = 4\n" + end, "x.net:3:", '"out"', "before, in line 2")
        self.bad("[flatten]\n[linear] name = a..b, out = 3\n" + end, "x.net:2:", "name = a..b", "dots between")
        self.bad("[flatten]\n[linear] out = 3, init = xavier\n" + end, "x.net:2:", "init = xavier", "normal STD")

    def test_syntax(self):
        self.bad("[relu\n", "x.net:1:", 'no "]"')
        self.bad("out = 3\n", "x.net:1:", "before the first section")
        self.bad("[relu]\nout\n", "x.net:2:", 'expected "key = value"')
        self.bad("[linear] out = 3 bias = no\n", "x.net:1:", "a comma is missing")
        self.bad("[relu]\n\x01\n", "x.net:2:", "control character 0x01")
        self.bad("[relu] ;" + "x" * 2000 + "\n", "x.net:1:", "longer than 1000 bytes")
        self.bad("; nothing\n", "x.net has no layers")
        self.bad("[relu]\n", "x.net has no [loss]")
        r = self.run("-c", self.ini("x.ini", self.net("x.net", ""), {"model.layers": {"net": "none.net"}}), "--check")
        self.fails(r, 2, "net = none.net", "No such file", "relative to the folder")
        r = self.run("-c", self.ini("x.ini", self.net("x.net", ""), {"model.layers": {"net": self.dir}}), "--check")
        self.fails(r, 2, "not a regular file")

    def test_shapes(self):
        """Both shapes, the layer, its line."""
        end = "[loss] type = cross_entropy\n"
        self.bad("[flatten]\n[conv2d] out = 3, kernel = 3, name = c\n" + end, "x.net:2: [conv2d]", '"c"', "(N, 36)")
        self.bad("[flatten]\n[relu] name = a\n[linear] out = 4\n[add] from = a\n" + end, "x.net:4: [add]", 'layer "3"', "(N, 4)",
                 "(N, 36)")
        self.bad("[conv2d] out = 3, kernel = 9\n" + end, "x.net:1: [conv2d]", "(N, 1, 6, 6)", "9")
        self.bad("[conv2d] out = 4, kernel = 1\n[conv2d] out = 4, kernel = 1, groups = 3\n" + end, "x.net:2:", "groups = 3", "4")
        self.bad("[flatten]\n[embedding] count = 3, features = 4\n" + end, "x.net:2: [embedding]", "i64")
        self.bad("[input] field = picture\n[relu]\n" + end, "x.net:1: [input]", '"picture"', "image f32 (1, 6, 6)")

    def test_references_and_order(self):
        end = "[loss] type = cross_entropy\n"
        self.bad("[flatten] name = flat\n[add] from = falt\n" + end, "x.net:2:", "from = falt", 'did you mean "flat"?')
        self.bad("[flatten]\n[add]\n" + end, "x.net:2:", 'needs a key "from"')
        self.bad("[flatten] name = a\n[linear] tied = a\n" + end, "x.net:2:", "tied = a", "no weight to tie")
        self.bad("[flatten]\n[relu] name = a\n[relu] name = a\n" + end, "x.net:3:", '"a"', "the layer in line 2")
        self.bad("[flatten]\n[repeat] times = 2\n[linear] out = 4, name = fc\n[end]\n" + end, "x.net:3:", '"fc"',
                 "give the [repeat]")
        self.bad("[flatten]\n[repeat] times = 2\n[relu]\n" + end, "x.net:4:", "inside a [repeat]", "[end]")
        self.bad("[flatten]\n[repeat] times = 2\n[end]\n" + end, "x.net:3:", "directly below its [repeat]")
        self.bad("[flatten]\n[end]\n" + end, "x.net:2:", "without a [repeat]")
        self.bad("[repeat] times = 2\n" * 9, "x.net:9:", "more than 8 deep")
        self.bad("[repeat] times = 4096\n" * 2 + "[relu]\n" + "[end]\n" * 2 + end, "x.net:", "more than 4096 layers")
        deep = "[flatten]\n[repeat] times = {}\n[relu]\n[end]\n[linear] out = 4\n" + end
        self.bad(deep.format(4095), "x.net:5:", "more than 4096 layers")
        self.equal(self.run("-c", self.ini("deep.ini", self.net("deep.net", deep.format(4094)), data("1, 6, 6", 64, 4)),
                            "--check").code, 0)
        self.bad("[relu]\n[input] field = image\n" + end, "x.net:2:", "must be the first")
        self.bad("[input] field = image\n" + end, "x.net:2:", "no layer above it")
        self.bad("[flatten]\n[metric] type = accuracy\n" + end, "x.net:2:", "before [loss]")
        self.bad("[flatten]\n" + end + "[relu]\n", "x.net:3:", "below [loss]")
        self.bad("[flatten]\n" + end + end, "x.net:3:", "second time")

    # ---- ranks ------------------------------------------------------------------------------------------------------
    def test_ranks_with_different_nets(self):
        """Equal parameters, another activation or stride: the first operation that differs is named."""
        for changed, says in ((MLP.replace("[relu]", "[gelu]"),
                               "operation 3: relu of 1 (rank 0, model layers) against gelu of 1"),
                              (MLP.replace("y\n", "y, label_smoothing = 0.5\n", 1), "against cross_entropy label_smoothing 0.5")):
            self.differ(MLP, changed, says)

    def test_ranks_with_different_keys(self):
        """Each key of the layers without a parameter's shape to it arrives in the operation."""
        image = "[conv2d] out = 4, kernel = 1\n[batch_norm2d]\n[flatten]\n[linear] out = 4\n[loss] type = cross_entropy\n"
        text = "[flatten]\n[linear] out = 12\n[layer_norm]\n[linear] out = 4\n[loss] type = cross_entropy\n"
        for net, here, there, says in (
                (image, "[batch_norm2d]", "[batch_norm2d] eps = 1e-3, momentum = 0.25", "eps 0.001 momentum 0.25"),
                (text, "[layer_norm]", "[layer_norm] eps = 0.5", "layer_norm eps 0.5"),
                (text, "cross_entropy", "cross_entropy, weight = 1, 2, 0.5, 1, ignore_index = 3", "ignore_index 3 weight 1, 2, 0.5, 1")):
            self.differ(net, net.replace(here, there), says)

    def differ(self, here, there, says):
        port, started = harness.free_port(), []
        for rank, text in enumerate((here, there)):
            group = {"group": {"backend": "gloo-tcp", "world_size": 2, "rank": rank,
                               "init_method": f"tcp://127.0.0.1:{port}"}}
            net = self.net(f"{rank}.net", text)
            started.append(self.start("-c", self.ini(f"{rank}.ini", net, group, data("1, 6, 6", 64, 4))))
        results = [self.finish(p) for p in started]
        for r in results:
            self.equal(r.code, 4, r)
        self.fails(results[1], 4, "rank 0 and rank 1 differ in operation ", says, "Make them equal")


    # ---- resuming ---------------------------------------------------------------------------------------------------
    def test_resumed_with_another_net(self):
        """The path is the same, the parameters fit: the operations tell."""
        more = {"checkpoint": {"dir": self.dir / "ckpt"}}, data("1, 6, 6", 64, 4)
        self.train(self.net("x.net", MLP), *more, {"train": {"epochs": 1}})
        r = self.train(self.net("x.net", MLP + "[metric] type = f1\n"), *more, {"train": {"epochs": 2}})
        self.check("model.graph" not in r.err, r)
        r = self.train(self.net("x.net", MLP.replace("[relu]", "[gelu]")), *more, {"train": {"epochs": 3}})
        self.check(re.search(r"was saved with other settings: .*model\.graph = 5 operations, hash \w+ there and 5 operations", r.err), r)


if __name__ == "__main__":
    sys.exit(harness.main(Nets))
