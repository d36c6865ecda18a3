#!/usr/bin/env python3
"""PyTorch's side of the races of tests/gpu/run: one process a model, which builds and compiles while other stages run, then answers
lines of JSON on standard input, so that both sides can take turns without compiling again:

    gpu_torch.py gpt2|resnet|mlp --device cuda|cpu --batch N [--ways plain|tuned] [--context T] [--tiny] [--lock FILE] [--seconds S]
    {"way": "compiled", "steps": 30, "warmup": 3}  ->  {"ms": 61.2, "allocated": ..., "reserved": ...}
    {"rates": true}                                ->  {"bf16": FLOP/s, "f32": FLOP/s, "copy": bytes/s}

Made as fast as PyTorch is without other libraries: torch.compile, also with max-autotune, bf16 autocast, scaled_dot_product_attention
by its own choice and by cuDNN, fused optimisers, images channels last, cuDNN's benchmark, TF32, the vocabulary padded, data on the
device, no value fetched before the last step; the whole step as one CUDA graph too. max-autotune is --ways tuned, a process of its
own, since it compiles for long. Ways that are not compiled after --seconds are left out. Memory that it keeps is given back after each line. Of processes with one --lock, one at a time
tries its first steps, in which cuDNN times its algorithms. Models are those of
tests/parity/torch_models.py, but for linear layers in place of its transposed ones."""
import argparse
import contextlib
import fcntl
import json
import math
import pathlib
import signal
import sys
import time
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "parity"))
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import torch_models  # noqa: E402
from torch import nn  # noqa: E402

HELD = 4  # batches on the device


def attention(self, x):
    n, t, e = x.shape
    q, k, v = (y.view(n, t, self.heads, e // self.heads).transpose(1, 2) for y in self.c_attn(x).split(e, 2))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return self.c_proj(y.transpose(1, 2).reshape(n, t, e))


def transformer(self, tokens):
    x = self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]
    for block in self.h:
        x = block(x)
    return self.ln_f(x)


def gpt2(args):
    if hasattr(F, "scaled_dot_product_attention"):
        torch_models.Attention.forward = attention
    torch_models.Transformer.forward = transformer
    size = {"layers": 2, "heads": 2, "width": 128, "vocabulary": 256} if args.tiny else {"padded_vocabulary": 50304}
    model = torch_models.build("gpt2", preset="gpt2", context=args.context, **size)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, torch_models.Conv1D):
                linear = nn.Linear(child.weight.shape[0], child.weight.shape[1])
                linear.weight.data.copy_(child.weight.data.t())
                nn.init.zeros_(linear.bias)
                setattr(module, name, linear)
    tokens = torch.randint(0, 256 if args.tiny else 50257, (HELD, args.batch, args.context + 1))
    return model, [(t[:, :-1].contiguous(), t[:, 1:].contiguous()) for t in tokens]


def resnet(args):
    model = torch_models.build("resnet", stem="cifar", width=8 if args.tiny else 64, classes=10).to(memory_format=torch.channels_last)
    return model, [(torch.randn(args.batch, 3, 32, 32).contiguous(memory_format=torch.channels_last), torch.randint(0, 10, (args.batch,)))
                   for _ in range(HELD)]


def mlp(args):
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    return model, [(torch.randn(args.batch, 784), torch.randint(0, 10, (args.batch,))) for _ in range(HELD)]


class Whole(nn.Module):
    """Model and loss."""

    def __init__(self, model, half):
        super().__init__()
        self.model, self.half = model, half

    def forward(self, x, y):
        with torch.autocast("cuda" if x.is_cuda else "cpu", dtype=torch.bfloat16, enabled=self.half):
            return torch_models.loss_of(self.model(x), y)


class WholeByCudnn(Whole):
    """With cuDNN's attention, which PyTorch does not choose by itself everywhere."""

    def forward(self, x, y):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
            return super().forward(x, y)


class Late(BaseException):
    """No Exception: a compiler that tries many kernels takes those for a kernel that does not work."""


def late(*_):
    raise Late("there was no time left to compile it")


class Rival:
    def __init__(self, args):
        self.args, self.cuda = args, args.device == "cuda"
        torch.manual_seed(0)
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
        model, data = {"gpt2": gpt2, "resnet": resnet, "mlp": mlp}[args.model](args)
        self.model = model.to(args.device)
        self.whole = Whole(self.model, self.cuda and args.model != "mlp")
        self.data = [(x.to(args.device), y.to(args.device)) for x, y in data]
        self.optimizer = self.make_optimizer()
        self.ways = {} if args.ways == "tuned" else {"eager": self.plain(self.whole)}

    def make_optimizer(self):
        gpt = self.args.model == "gpt2"
        options = {"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.1} if gpt else {"lr": 0.01, "momentum": 0.9}
        if self.cuda:
            options["fused"] = True
            if gpt:
                options["capturable"] = True  # its step counts are on the device, so that a graph can have them
        return (torch.optim.AdamW if gpt else torch.optim.SGD)(self.model.parameters(), **options)

    def plain(self, whole):
        """A way: what makes its step."""
        def step(i):
            x, y = self.data[i % HELD]
            self.optimizer.zero_grad(set_to_none=True)
            loss = whole(x, y)
            loss.backward()
            self.optimizer.step()
            return loss
        return lambda: step

    def graphed(self, whole):
        """The whole step, update too, as one graph over a batch in place."""
        def make():
            x, y = (t.clone() for t in self.data[0])

            def update():
                loss = whole(x, y)
                loss.backward()
                self.optimizer.step()
                return loss
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    self.optimizer.zero_grad(set_to_none=True)
                    update()
            torch.cuda.current_stream().wait_stream(side)
            self.optimizer.zero_grad(set_to_none=True)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                loss = update()

            def step(i):
                bx, by = self.data[i % HELD]
                x.copy_(bx)
                y.copy_(by)
                graph.replay()
                return loss
            return step
        return make

    def compiled_ways(self):
        """Those of --ways: tuned compile for longest."""
        gpt = self.args.model == "gpt2"
        by_cudnn = WholeByCudnn(self.model, self.whole.half) if gpt else None
        if self.args.ways == "tuned":
            tuned = torch.compile(by_cudnn or self.whole, mode="max-autotune-no-cudagraphs")
            return {"max-autotune": self.plain(tuned), "graph, max-autotune": self.graphed(tuned)}
        compiled = torch.compile(self.whole)
        ways = {"compiled": self.plain(compiled)}
        if self.args.model == "mlp":
            ways["graph"] = self.graphed(self.whole)
        if gpt:
            compiled = torch.compile(by_cudnn)
            ways["compiled, cuDNN attention"] = self.plain(compiled)
        ways["graph, compiled"] = self.graphed(compiled)
        return ways

    def prepare(self):
        """Compiles; a way that does not work here, or not in time, is told and left out."""
        told, until = {}, time.monotonic() + self.args.seconds
        signal.signal(signal.SIGALRM, late)
        if self.cuda:
            self.ways |= self.compiled_ways()
            with contextlib.suppress(Exception):  # else the first kernels would be compiled one after the other
                torch._inductor.async_compile.AsyncCompile.wait_pool_ready()
        for name in list(self.ways):
            try:
                began = time.monotonic()
                signal.alarm(max(1, math.ceil(until - began)))
                with self.alone() if name == "eager" else contextlib.nullcontext():
                    self.time({"way": name, "steps": 2, "warmup": 2})
                told[name] = round(time.monotonic() - began, 1)
            except (Exception, Late) as e:  # whatever a compiler throws
                told[name] = f"{type(e).__name__}: {str(e)[:300]}"
                del self.ways[name]
            finally:
                signal.alarm(0)
        return told

    @contextlib.contextmanager
    def alone(self):
        if not self.args.lock:
            yield
            return
        with open(self.args.lock, "w") as f:  # closing it lets the next one go on
            fcntl.flock(f, fcntl.LOCK_EX)
            yield

    def sync(self):
        if self.cuda:
            torch.cuda.synchronize()

    def time(self, order):
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        step = self.ways[order["way"]]()
        for i in range(order["warmup"]):
            step(i)
        self.sync()
        began = time.perf_counter()
        for i in range(order["steps"]):
            loss = step(i)
        self.sync()
        ms = (time.perf_counter() - began) * 1e3 / order["steps"]
        out = {"ms": ms, "loss": float(loss.detach())}
        if not math.isfinite(out["loss"]):
            raise ValueError("the loss is not finite")
        del step, loss
        self.optimizer.zero_grad(set_to_none=True)
        if self.cuda:
            out |= {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
            torch.cuda.empty_cache()
        return out

    def rates(self):
        """What the device does at its best, measured by PyTorch."""
        n, words = (8192, 1 << 28) if self.cuda else (512, 1 << 22)
        out = {}
        for name, dtype in (("bf16", torch.bfloat16), ("f32", torch.float32)):
            a, b = (torch.randn(n, n, device=self.args.device).to(dtype) for _ in range(2))
            out[name] = 2.0 * n**3 / self.best(lambda a=a, b=b: a @ b)
            del a, b
        x = torch.randn(words, device=self.args.device)
        y = torch.empty_like(x)
        out["copy"] = 8.0 * words / self.best(lambda: y.copy_(x))
        del x, y
        if self.cuda:
            torch.cuda.empty_cache()
        return out

    def best(self, call):
        """Seconds; the median of rounds of a few calls."""
        times = []
        for _ in range(7):
            self.sync()
            began = time.perf_counter()
            for _ in range(5):
                call()
            self.sync()
            times.append((time.perf_counter() - began) / 5)
        return sorted(times)[len(times) // 2]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", choices=("gpt2", "resnet", "mlp"))
    p.add_argument("--device", default="cuda")
    p.add_argument("--batch", type=int, required=True)
    p.add_argument("--context", type=int, default=1024)
    p.add_argument("--tiny", action="store_true")
    p.add_argument("--ways", choices=("plain", "tuned"), default="plain")
    p.add_argument("--lock", metavar="FILE")
    p.add_argument("--seconds", type=float, default=600.0)
    rival = Rival(p.parse_args(namespace=types.SimpleNamespace()))
    answers = sys.stdout
    sys.stdout = sys.stderr  # what libraries print is no answer
    print(json.dumps({"ready": rival.prepare()}), file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = rival.rates() if "rates" in order else rival.time(order)
        except Exception as e:  # the next line may still do
            answer = {"error": f"{type(e).__name__}: {str(e)[:300]}"}
        print(json.dumps(answer), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
