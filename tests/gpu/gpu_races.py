"""The stages of tests/gpu/run that compare with PyTorch: both sides take turns on one GPU in one run. gpu_torch.py is PyTorch's.

Memory is how much the device's used memory grows with the process of either side, its context and the code of its libraries included,
at the most: of ours with algorithms that are in the cache, since measuring them takes memory of its own; of PyTorch's by the way
that is the fastest. What PyTorch's allocator reserved, and what --check of ours plans, is told beside it and is no part of the ratio."""
import json
import os
import queue
import statistics
import subprocess
import threading
import time

from gpu_engine import ADAMW, SGD, SRC, Failure, fashion, kill_group, merged

RACES = ("gpt2", "resnet", "mlp")
NOT_FAR = 1.1    # of the fastest: a way of PyTorch's that takes longer has no further turn


class Compiling:
    """A process of gpu_torch.py with some of a model's ways; it compiles while other stages run."""

    def __init__(self, c, model, batch, context, ways):
        self.name, self.kind = model, ways
        self.log = (c.work / f"torch-{model}-{ways}.log").open("w+")
        self.limit = c.args.compile  # for all ways; those that are left when it is over are left out
        env = {"TORCHINDUCTOR_CACHE_DIR": str(c.work / "inductor"), **os.environ}
        argv = [c.args.python, str(SRC / "tests/gpu/gpu_torch.py"), model, "--device", c.args.device, "--batch", str(batch), "--ways", ways,
                "--context", str(context), "--lock", str(c.work / "gpu-lock"), "--seconds", str(self.limit - 20)]
        self.p = subprocess.Popen([*argv, *(["--tiny"] if c.args.tiny else [])], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
                                  text=True, env=env, start_new_session=True)
        self.answers, self.began, self.ended = queue.Queue(), time.monotonic(), False
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in self.p.stdout:
            self.answers.put(line)
        self.answers.put(None)

    def answer(self, limit):
        try:
            line = self.answers.get(timeout=max(1.0, limit))
        except queue.Empty:
            raise Failure(f"PyTorch ({self.name}, {self.kind} ways) did not answer in {limit:.0f} s") from None
        if line is None:
            self.log.seek(0)
            said = (self.log.read().strip().splitlines() or ["it said nothing"])[-1][:300]
            raise Failure(f"PyTorch ({self.name}, {self.kind} ways) ended: {said}")
        return json.loads(line)

    def ways(self, c):
        """Those that work, after what may be minutes of compiling; what does not is a row."""
        try:
            told = self.answer(min(c.left(), self.limit - (time.monotonic() - self.began)))["ready"]
        except Failure as e:
            c.row(f"PyTorch, {self.name}, {self.kind} ways", "info", f"not possible: {e}")
            self.end(c)  # else it would compile beside what is timed
            return []
        for way, t in told.items():
            c.row(f"PyTorch, {self.name}, {way}", "info", f"not possible: {t}" if isinstance(t, str) else f"compiled and tried in {t} s")
        return [w for w, t in told.items() if not isinstance(t, str)]

    def ask(self, c, order):
        self.p.stdin.write(json.dumps(order) + "\n")
        self.p.stdin.flush()
        out = self.answer(min(c.left(), 120))
        if "error" in out:
            raise Failure(f"PyTorch ({self.name}): {out['error']}")
        return out

    def end(self, c):
        if self.ended:
            return
        self.ended = True
        kill_group(self.p)
        self.p.wait()
        self.log.seek(0)
        c.log.write(f"---- PyTorch, {self.name}, {self.kind} ways\n{self.log.read()}")


class Rival:
    """PyTorch's ways of one model, in two processes, as some of them take much longer to compile."""

    def __init__(self, c, model, batch, context):
        self.name = model
        self.processes = [Compiling(c, model, batch, context, ways) for ways in (("plain", "tuned") if c.cuda else ("plain",))]
        self.by_way = None

    def ready(self, c):
        if self.by_way is None:
            self.by_way = {way: p for p in self.processes for way in p.ways(c)}
        if not self.by_way:
            raise Failure(f"PyTorch ({self.name}): no way works")
        return list(self.by_way)

    def ask(self, c, **order):
        return self.by_way[order["way"]].ask(c, order)

    def rates(self, c):
        return next(iter(self.by_way.values())).ask(c, {"rates": True})

    def keep(self, c, way):
        """Ends the processes that do not have the way."""
        for p in self.processes:
            if p is not self.by_way[way]:
                p.end(c)

    def end(self, c):
        for p in self.processes:
            p.end(c)


def used_memory():
    """Bytes of the device that are in use, by all processes; None where nvidia-smi does not tell."""
    try:
        r = subprocess.run(["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True,
                           timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return int(r.stdout) << 20 if r.stdout.strip().isdigit() else None


class Memory:
    """The device's used memory before and at its largest."""

    def __enter__(self):
        self.before = self.most = used_memory()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        if self.before is not None:
            self.thread.start()
        return self

    def watch(self):
        while not self.done.wait(0.05):
            self.most = max(self.most, used_memory() or 0)

    def __exit__(self, *_):
        self.done.set()
        if self.before is not None:
            self.thread.join()

    def grown(self):
        return self.most - self.before if self.before is not None else None


def settled_memory():
    """When a process has ended, its memory goes a moment later."""
    last, until = used_memory(), time.monotonic() + 5
    while last is not None and time.monotonic() < until:
        time.sleep(0.5)
        now = used_memory()
        if now == last:
            break
        last = now
    return last


class Sensors:
    """The device's clock and power while a side runs, of the moments in which it worked: those with most of the highest power."""

    def __enter__(self):
        self.found, self.p = [], None
        try:
            self.p = subprocess.Popen(["nvidia-smi", "-i", "0", "-lms", "100", "--format=csv,noheader,nounits",
                                       "--query-gpu=clocks.sm,power.draw,temperature.gpu"],
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True)
        except OSError:
            return self
        self.thread = threading.Thread(target=self.listen, daemon=True)
        self.thread.start()
        return self

    def listen(self):
        for line in self.p.stdout:
            try:
                clock, watts, degrees = map(float, line.split(","))
            except ValueError:  # "[N/A]"
                continue
            if line.endswith("\n"):  # the last may be cut
                self.found.append([clock, watts, degrees])

    def __exit__(self, *_):
        if self.p:
            kill_group(self.p)
            self.p.wait()
            self.thread.join()
            self.p.stdout.close()

    def at_work(self):
        """MHz, W and degrees Celsius, medians; None where nvidia-smi did not tell."""
        most = max((watts for _, watts, _ in self.found), default=0)
        busy = [s for s in self.found if s[1] >= 0.8 * most]
        return [statistics.median(column) for column in zip(*busy)] if busy else None


# ---- what is raced: sizes, the engine's INI, FLOPs and bytes of a step ----------------------------------------------------------------
def gpt2(c):
    """Per token 6 FLOPs a weight of a product, and attention's two products over half of the context, forward and twice backward. Bytes: each
    activation that is kept, in bf16, written and read back; logits and their gradient written and read; AdamW's 28 a parameter."""
    tiny = c.args.tiny
    layers, width, vocabulary, context = (2, 128, 256, 32) if tiny else (12, 768, 50304, 1024)
    batch = c.args.gpt_batch or (2 if tiny else 32)
    tokens, matrices = batch * context, 12 * layers * width * width
    flops = tokens * (6 * (matrices + vocabulary * width) + 6 * layers * width * context)
    size = 28 * (matrices + (vocabulary + context) * width) + tokens * (layers * 16 * width * 4 + vocabulary * 8)
    options = {"layers": 2, "heads": 2, "width": 128, "context": 32, "vocabulary": 256} if tiny else {"preset": "gpt2", "padded_vocabulary": 50304}
    config = merged(ADAMW, {"model": {"plugin": "gpt2"}, "model.gpt2": options, "data": {"plugin": "synthetic"},
                            "data.synthetic": {"samples": 64 * batch, "shape": context, "vocabulary": 256 if tiny else 50257},
                            "train": {"batch_size": batch, "precision": "bf16"}})
    return {"title": f"GPT-2 124M, {batch} x {context}, bf16", "config": config, "batch": batch, "context": context, "unit": "tokens/s",
            "per_step": tokens, "flops": flops, "bytes": size, "rate": "bf16", "steps": 4 if tiny else 40, "warmup": 2 if tiny else 5}


def resnet(c):
    """Convolutions of ResNet-18 on 32 x 32, forward and twice backward; every output of a convolution and of what follows it is written and
    read twice, and its gradient written and read."""
    tiny = c.args.tiny
    width, batch = (8, 8) if tiny else (64, 512)
    macs, elements, side, before = 27 * width * 1024, width * 1024, 32, width
    for layer in range(4):
        out, side = width << layer, side if layer == 0 else side // 2
        places, first = side * side, 9 * before * out
        macs += places * (first + 3 * 9 * out * out + (before * out if layer else 0))
        elements += places * out * (5 if layer else 4)
        before = out
    folder = images(c, 64 if tiny else 13824)  # a race is one epoch: 135 batches
    config = merged(SGD, {"model": {"plugin": "resnet"}, "model.resnet": {"stem": "cifar", "width": width, "classes": 10},
                          "data": {"plugin": "cifar", "mean": 0.5, "std": 0.25}, "data.cifar": {"folder": folder},
                          "loader": {"workers": 1 if tiny else 4, "prefetch": 8}, "train": {"batch_size": batch, "precision": "bf16"}})
    return {"title": f"ResNet-18, 3 x 3 stem, {batch} x 32 x 32, bf16", "config": config, "batch": batch, "context": 0, "unit": "images/s",
            "per_step": batch, "flops": 6 * macs * batch, "bytes": 20 * elements * batch, "rate": "bf16", "steps": 4 if tiny else 120,
            "warmup": 2 if tiny else 15}


def images(c, count):
    """Files as CIFAR-10's, of bytes in no order."""
    folder = c.work / "cifar"
    if not folder.exists():
        folder.mkdir()
        for part in range(1, 6):
            raw = bytearray(os.urandom(3073 * count))
            for i in range(count):
                raw[3073 * i] = i % 10
            (folder / f"data_batch_{part}.bin").write_bytes(raw)
    return folder


def mlp(c):
    """Weights read forward and backward, their gradients written, SGD with momentum 20 a parameter. 937 whole batches an epoch."""
    products = 784 * 512 + 512 * 512 + 512 * 10
    config = merged(fashion(c, 59968), SGD, {"model": {"plugin": "mlp"}, "model.mlp": {"hidden": "512, 512", "classes": 10},
                                             "train": {"batch_size": 64},
                                             "loader": {"workers": 1 if c.args.tiny else 2, "prefetch": 16}}, c.device_section(tf32=True))
    return {"title": "MLP 784-512-512-10, batch 64", "config": config, "batch": 64, "context": 0, "unit": "samples/s", "per_step": 64,
            "flops": 2 * 64 * (3 * products - 784 * 512), "bytes": 32 * products, "rate": "f32", "steps": 20 if c.args.tiny else 8000,
            "warmup": 5 if c.args.tiny else 500}


KINDS = {"gpt2": gpt2, "resnet": resnet, "mlp": mlp}


def start(c, chosen):
    """PyTorch's processes of the races that are chosen."""
    made = {}
    for name in RACES:
        if name in chosen and not c.args.alone:
            race = KINDS[name](c)
            made[name] = Rival(c, name, race["batch"], race["context"] or 1)
    return made


def settle(c, rivals):
    """Waits until none of them compiles any more; what failed is told by its race."""
    for r in rivals.values():
        try:
            r.ready(c)
        except Failure as e:
            c.log.say(str(e))


# ---- a race ----------------------------------------------------------------------------------------------------------------------------
def ours(c, name, race, options=(), steps=None, layers=()):
    steps = steps or race["steps"]
    return c.train(name, race["config"], {"train": {"max_steps": race["warmup"] + steps}}, *layers, options=options)


def run(c, name, rival):
    c.part(name, compete, c, name, rival)


def asked(c, what, ways, call):
    """PyTorch's answer; None, and a row, where it has none: the engine's side goes on."""
    try:
        return call()
    except Failure as e:
        c.row(f"{what}, PyTorch", "FAILED", str(e))
        ways.clear()
        return None


def compete(c, name, rival):
    race = KINDS[name](c)
    ways = (asked(c, name, [], lambda: rival.ready(c)) or []) if rival else []
    ours(c, f"{name}-first", race, steps=1)  # measures and keeps algorithms
    with Memory() as memory:
        ours(c, f"{name}-memory", race, ["--log-level", "debug"])  # which of several ways it takes
    rates = asked(c, name, ways, lambda: rival.rates(c)) if ways else None
    mine, theirs, reserved, hidden, sensors = [], {}, {}, [], {}
    for _ in range(1 if rival is None else c.args.rounds):
        with Sensors() as s:
            r = ours(c, name, race)
        sensors.setdefault("ours", []).append(s.at_work())
        mine.append(r.step_ms(race["warmup"]))
        hidden.append(r.unaccounted_ms())
        for way in list(ways):
            with Sensors() as s:
                a = asked(c, name, ways, lambda way=way: turn(c, name, race, rival, way))
            if a is None:
                break
            sensors.setdefault(way, []).append(s.at_work())
            theirs.setdefault(way, []).append(a["ms"])
            reserved[way] = a.get("reserved", 0)
        least = min((statistics.median(theirs[w]) for w in ways), default=0.0)
        ways = [w for w in ways if statistics.median(theirs[w]) <= NOT_FAR * least]
    c.tables[name] = result = summed_up(race, rates, mine, theirs)
    result |= {"unaccounted_ms": hidden, "sensors": sensors, "our_bytes": memory.grown(), "our_planned_bytes": planned_memory(c, name, race),
               "their_bytes": their_memory(c, name, race, rival, result["best"]) if ways else None,
               "their_reserved_bytes": reserved.get(result["best"])}
    if name == "gpt2":
        result["variants"] = [variant(c, name, race, *v) for v in VARIANTS if c.cuda or "device.cuda" not in v[1]]
    c.row(race["title"], "ok", f"{result['ms']:.3f} ms{result['against']}; {statistics.median(hidden):.0f} ms of a run were outside of its steps")
    c.part(f"{name}, profile", profile, c, name, race)


# Of GPT-2: the first trades time for memory, the second moves fewer bytes than PyTorch's autocast does and rounds more often.
VARIANTS = (("recompute = yes", {"train": {"recompute": "yes"}}), ("residual = bf16", {"device.cuda": {"residual": "bf16"}}))


def variant(c, name, race, title, keys):
    """The same with some keys changed."""
    race, run = race | {"config": merged(race["config"], keys)}, f"{name}-{title.split()[0]}"
    ours(c, f"{run}-first", race, steps=1)
    with Memory() as memory:
        r = ours(c, run, race)
    return {"title": title, "ms": r.step_ms(race["warmup"]), "bytes": memory.grown(), "planned_bytes": planned_memory(c, name, race)}


def planned_memory(c, name, race):
    try:
        return c.plan(name, race["config"]).bytes
    except Failure:
        return None


def turn(c, name, race, rival, way):
    return rival.ask(c, way=way, steps=race["steps"] if name != "mlp" else race["steps"] // 4, warmup=race["warmup"])


def their_memory(c, name, race, rival, way):
    """Of the process, from its most to when it has ended."""
    rival.keep(c, way)
    settled_memory()
    with Memory() as memory:
        asked(c, f"{name}, memory", [], lambda: turn(c, name, race, rival, way))
    rival.end(c)
    after = settled_memory()
    return memory.most - after if memory.most is not None and after is not None else None


def summed_up(race, rates, mine, theirs):
    ms = statistics.median(mine)
    out = {"title": race["title"], "unit": race["unit"], "per_second": race["per_step"] / ms * 1e3, "ms": ms, "ours_ms": mine, "theirs_ms": theirs,
           "rates": rates, "best": None, "ratios": [], "against": ""}
    if rates:
        out |= {"floor_compute_ms": 1e3 * race["flops"] / rates[race["rate"]], "floor_memory_ms": 1e3 * race["bytes"] / rates["copy"]}
    if theirs:
        best = min(theirs, key=lambda w: statistics.median(theirs[w]))
        other = statistics.median(theirs[best])
        ratios = [t / o for t, o in zip(theirs[best], mine)]
        out |= {"best": best, "other_ms": other, "ratios": ratios, "ratio": statistics.median(ratios),
                "against": f" against {other:.3f} ({best}), {statistics.median(ratios):.2f} times"}
    return out


def profile(c, name, race):
    r = ours(c, f"{name}-profile", race, ["--profile"], steps=3 if c.args.tiny else 12)
    at = r.err.find("profile of rank 0")
    if at < 0 or not (r.dir / "profile.json").exists():
        raise Failure("--profile printed no table")
    p = json.loads((r.dir / "profile.json").read_text())
    result = c.tables.get(name, {})
    p |= checked(p, result.get("rates"), race) | {"title": race["title"], "step_ms": result.get("ms"), "counted_flops": race["flops"]}
    c.profiles.append((race["title"], r.err[at:], p))
    paths = sorted({row["name"] for row in p["rows"] if row["name"].startswith(("attention", "conv"))})
    c.row(f"{name}, profile", "ok", f"{len(p['ops'])} kinds of kernels{': ' if paths else ''}{', '.join(paths)}")


def checked(p, rates, race):
    """Each row against the card: what its FLOPs take at the rate of the fastest product that either side measured, its bytes at that of a
    copy. Every kernel is waited for, so a call takes at least what the shortest one does, in which there is next to nothing to do."""
    card = {"flops": max(1e9 * (p["peak_gflops"] or 0), rates[race["rate"]] if rates else 0),
            "bytes": max(1e9 * (p["peak_gbytes_per_s"] or 0), rates["copy"] if rates else 0)}
    ops = []
    for row in p["rows"]:
        flops, size = (1e6 * row["ms"] * (row[rate] or 0) for rate in ("gflops", "gbytes_per_s"))
        if flops == size == 0 or row["ms"] <= 0:
            continue
        compute, memory = (1e3 * n / card[what] if card[what] else 0.0 for n, what in ((flops, "flops"), (size, "bytes")))
        ops.append({"name": row["name"], "calls": row["calls"], "ms": row["ms"], "share": row["share"], "flops": flops, "bytes": size,
                    "floor_compute_ms": compute, "floor_memory_ms": memory, "percent_of_products": 100 * compute / row["ms"],
                    "percent_of_copy": 100 * memory / row["ms"]})
    return {"card": card, "ops": ops, "least_call_ms": min((o["ms"] / o["calls"] for o in ops), default=None)}


# ---- the machinery of DistributedDataParallel at world 1 ----------------------------------------------------------------------------------
def machinery(c):
    engaged = {"ddp": {"shard_update": "no", "overlap": "yes"}}
    backends = ("gloo-tcp", "nccl") if c.cuda else ("gloo-tcp",)
    for name, taken in (("resnet", backends), ("gpt2", backends[-1:])):
        c.part(f"{name}, one rank with the backend engaged", weigh, c, name, taken, engaged)


def weigh(c, name, backends, engaged):
    race, times = KINDS[name](c), {}
    race["steps"] = min(race["steps"], 40)
    for _ in range(3):
        for way in ("none", *backends):
            layers = () if way == "none" else (engaged, {"group": {"backend": way}})
            times.setdefault(way, []).append(ours(c, f"{name}-{way}", race, layers=layers).step_ms(race["warmup"]))
    base = statistics.median(times["none"])
    text = ", ".join(f"{way} {statistics.median(t):.3f} ({statistics.median(t) / base:.3f})" for way, t in times.items())
    c.row(f"{name}, one rank with the backend engaged", "ok", f"ms (of none): {text}", times=times)
