"""The stages of tests/gpu/run that prove: each row is ok or FAILED, or says why it was not possible here."""
import itertools
import math
import re
import shutil
import subprocess
import threading

import gpu_races
from gpu_engine import Failure, Impossible, Run, apart, last_line, merged, small_models

STEPS = 30
EARLY = 3
# Largest relative difference of a loss from the CPU's, in the first EARLY steps and in all. Both sides compute in f32 and add in another
# order; a difference of a few 1e-7 a sum grows with each update. The ResNet's later steps are held loosely: batch norm amplifies
# rounding until runs part, whoever makes them (tests/parity/make/make_model_curves.py).
F32 = {"mlp": (1e-4, 1e-3), "lenet": (1e-4, 1e-3), "resnet": (1e-4, 0.1), "gpt": (1e-4, 1e-3)}
# Of bf16 from f32 on one device: operands have 8 bits, so a product is off by 2^-9 at most, and sums by less, as errors cancel.
# The convolutional net's later steps are held loosely as well: over 12 seeds PyTorch's autocast on a CPU parts from its own f32 by 0.9 to 7.9 %.
BF16 = {"mlp": (0.01, 0.02), "lenet": (0.01, 0.1), "resnet": (0.02, 0.1), "gpt": (0.01, 0.02)}
OWN_LIBRARIES = re.compile(r"cutlass|cublas|cudnn|xmma|gemm[A-Z]|splitK|nvjet|ncclDev|ncclKernel|implicit_convolve|dgrad|wgrad")


def steps_of(c, count=STEPS):
    return {"train": {"max_steps": min(count, 8) if c.args.tiny else count}}


# ---- the machine -------------------------------------------------------------------------------------------------------------------
def info(c):
    if c.cuda:
        r = c.call("nvidia-smi", ["nvidia-smi", "--query-gpu=index,name,driver_version,memory.total,clocks.max.sm,power.limit",
                                  "--format=csv,noheader"], limit=30)
        c.facts["gpus"] = r.stdout.strip().splitlines()
        for line in c.facts["gpus"]:
            c.row("gpu", "info", line)
    for title, command in (("nvcc", ["nvcc", "--version"]), ("C library", ["ldd", "--version"])):
        if shutil.which(command[0]):
            lines = [line for line in c.call(title, command, limit=20).stdout.splitlines() if re.search(r"\d+\.\d+", line)]
            c.facts[title] = lines[0].strip() if lines else ""
            c.row(title, "info", c.facts[title])
    r = c.call("versions", [c.args.python, "-c", "import torch; v = torch.backends.cudnn.version(); print('torch', torch.__version__, "
                            "'CUDA', torch.version.cuda, 'cuDNN', v, 'NCCL', torch.cuda.nccl.version() if torch.cuda.is_available() else None)"],
               limit=60, check=False)
    c.facts["torch"] = (r.stdout.strip() or last_line(r.stderr))
    c.row("PyTorch", "info", c.facts["torch"])
    r = c.call("plugins", [c.home / "ddpengine", "plugins"])
    wanted = "cuda" if c.cuda else "cpu"
    found = re.search(rf"^device +{wanted} .*", r.stdout, re.M)
    if not found:
        raise Failure(f"there is no device {wanted} in {c.home}/.libs")
    c.row("plugin", "ok", found.group(0))
    c.part("which kernels compute what", paths, c)


CUDNN_ATTENTION = (9, 16, 0)  # has the engines that attention and its gradient want on Hopper


def paths(c):
    """Which of several ways each op takes; bf16 attention with heads of 64 is to be cuDNN's where that is new enough."""
    models, told = small_models(c), {}
    models["resnet"] = merged(models["resnet"], {"model.resnet": {"width": 64}})
    for name, precision in (("gpt", "bf16"), ("resnet", "bf16"), ("resnet", "f32")):
        plan = c.plan(f"{name}-{precision}", models[name], {"train": {"precision": precision}})
        told[name, precision] = plan
        c.row(f"{name}, {precision}: kernels", "info", ", ".join(f"{count} {kernel}" for kernel, count in sorted(plan.paths().items())))
    plan = told["gpt", "bf16"]
    c.facts["device"] = plan.device
    c.row("device and its libraries", "info", plan.device)
    attention = sorted(k for k in plan.kernels if k.startswith("attention"))
    if not c.cuda:
        return
    if len(attention) == 2 and all(k.endswith("(cudnn)") for k in attention):
        c.row("bf16 attention, heads of 64", "ok", f"{' and '.join(attention)}")
    elif c.args.allow_own:
        c.row("bf16 attention, heads of 64", "ok", f"{' and '.join(attention)}, which --allow-own allows")
    elif plan.cudnn is None:
        raise Failure(f"cuDNN is not loaded, so it is by {' and '.join(attention)}; --allow-own if that is meant")
    elif plan.cudnn >= CUDNN_ATTENTION:
        raise Failure(f"{' and '.join(attention)}, with cuDNN {'.'.join(map(str, plan.cudnn))} there; --allow-own if that is meant")
    else:
        c.row("bf16 attention, heads of 64", "info", f"{' and '.join(attention)}: cuDNN {'.'.join(map(str, plan.cudnn))} is old")


# ---- the first steps of what is raced ------------------------------------------------------------------------------------------------
WAYS = {"bf16": {}, "bf16, own attention": {"device.cuda": {"cudnn_library": ""}}, "bf16, without graphs": {"device.cuda": {"graphs": "no"}},
        "bf16, recomputing": {"train": {"recompute": "yes"}}, "bf16, residual too": {"device.cuda": {"residual": "bf16"}},
        "f32": {"train": {"precision": "f32"}}}
NEAR = 0.3        # of the first loss to ln(vocabulary): logits of new weights are small, not 0
TOGETHER = 0.01   # relative, of a loss from that of another way


def first(c):
    c.part("GPT-2, what is planned", planned, c)
    c.part("GPT-2, ten steps", gpt2_steps, c)
    c.part("ResNet-18, three steps", resnet_steps, c)


def planned(c):
    """cuDNN tells all that it is asked and answers meanwhile."""
    log = c.out / "cudnn.log"
    env = {"CUDNN_LOGLEVEL_DBG": "3", "CUDNN_LOGDEST_DBG": str(log)} if c.cuda else None
    plan = c.plan("gpt2", gpu_races.gpt2(c)["config"], env=env)
    if log.exists() and log.stat().st_size > 4 << 20:
        log.write_bytes(log.read_bytes()[:4 << 20])
    c.row("GPT-2: kernels", "info", ", ".join(f"{count} {kernel}" for kernel, count in sorted(plan.paths().items())))


def gpt2_steps(c):
    """All ways start near ln(vocabulary), and stay near each other: cuDNN's attention, the device's own, kernels started one by one, the residual
    stream in bf16, f32."""
    race, losses = gpu_races.gpt2(c), {}
    vocabulary = race["config"]["data.synthetic"]["vocabulary"]
    for way, keys in WAYS.items():
        config = merged(race["config"], keys, {"train": {"max_steps": 10}})
        c.part(f"GPT-2, {way}", gpt2_way, c, way, config, math.log(vocabulary), losses)
    for a, b in itertools.combinations(WAYS, 2):
        c.part(f"GPT-2, {a} against {b}", gpt2_pair, c, f"GPT-2, {a} against {b}", losses.get(a), losses.get(b))


def gpt2_pair(c, what, a, b):
    if a is None or b is None:
        raise Impossible("one of the two did not run")
    worst = max(apart(a, b))
    c.row(what, "ok" if worst <= TOGETHER else "FAILED", f"{worst:.1e} in {len(a)} steps (bound {TOGETHER:.0e})", late=worst)


def gpt2_way(c, way, config, start, losses):
    if not c.cuda and "device.cuda" in WAYS[way]:
        raise Impossible("without a GPU")
    found = c.train(f"gpt2-{way.replace(', ', '-').replace(' ', '-')}", config).losses
    off = abs(found[0] - start) if found[0] is not None else math.inf
    c.row(f"GPT-2, {way}", "ok" if off <= NEAR else "FAILED", f"ln(vocabulary) is {start:.3f}, losses " + " ".join(f"{x:.4f}" for x in found),
          losses=found)
    losses[way] = found


def resnet_steps(c):
    found = c.train("resnet-first", merged(gpu_races.resnet(c)["config"], {"train": {"max_steps": 3}})).losses
    finite = all(x is not None and math.isfinite(x) for x in found)
    c.row("ResNet-18, three steps", "ok" if finite else "FAILED", "losses " + " ".join(f"{x:.4f}" if x is not None else "-" for x in found), losses=found)


# ---- operations --------------------------------------------------------------------------------------------------------------------
def gpus(c):
    return len(c.facts.get("gpus", [])) or len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.splitlines())


def ops(c):
    """Side by side: each process takes one processor, and next to nothing of the GPU."""
    jobs = [("every op against the scalar reference", unit_tests, "cuda_ops", "test_device"),
            ("whole models against the scalar reference", unit_tests, "cuda_models", "test_device_sequence")]
    if c.cuda:
        jobs.append(("whole steps against their calls, bit for bit", unit_tests, "cuda_step", None))
    device = f"device.{'cuda' if c.cuda else 'cpu'}"
    jobs.append((f"contract of {device}", conform, device))
    beside(c, [(what, function, c, what, *rest) for what, function, *rest in jobs])


def beside(c, parts):
    """Parts of a stage, all at once."""
    threads = [threading.Thread(target=c.part, args=args) for args in parts]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


SHARES = 12  # of each program's tests, a process each


def unit_tests(c, what, on_gpu, on_cpu):
    program = c.home / "tests/gpu" / on_gpu if c.cuda else c.home / "tests/unit" / on_cpu
    if not program.exists():
        if c.cuda:
            raise Failure(f"{program} is not there: make tests/gpu/{on_gpu} before pack")
        raise Impossible(f"{program} is not built")
    env = {"LD_LIBRARY_PATH": ":".join(filter(None, [str(c.home / "lib"), c.env["DDP_CUDA_LIBRARIES"], c.env.get("LD_LIBRARY_PATH")]))}
    count = SHARES if c.cuda else 1
    shares, passed, skipped, bad, longest = range(1, count + 1), [], [], [], []

    def share(number):
        try:
            r = c.call(f"{on_gpu}-{number}", [program], env={**env, "DDP_TEST_SHARE": f"{number}/{count}", "DDP_TEST_LOG": "1"}, check=False)
        except Failure as e:
            bad.append(str(e))
            return
        text = r.stdout + r.stderr
        passed.extend(map(int, re.findall(r"\[  PASSED  \] (\d+) test", text)))
        skipped.extend(re.findall(r"\[  SKIPPED \] \w", text))
        longest.append(r.seconds)
        failed = sorted(set(re.findall(r"\[  FAILED  \] (\w*[a-z][\w, ]*)", text)))
        said = re.findall(r"^(?:ERROR: |#  *)?(value .*|.*should be.*)$", text, re.M)
        if r.returncode != 0:
            bad.append(f"exit {r.returncode}, failed: {'; '.join(failed) or last_line(text)}{': ' + said[0] if said else ''}")
    threads = [threading.Thread(target=share, args=(n,)) for n in shares]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if bad or not sum(passed):
        raise Failure(f"{sum(passed)} passed; {'; '.join(bad)}")
    c.row(what, "ok", f"{sum(passed)} tests passed, {len(skipped)} skipped, {max(longest):.0f} s")


def conform(c, what, plugin):
    """Memory that cudnnCreate and cudnnDestroy leave behind, some 78 KB a time, is cuDNN's: what leaks is told of a device without it."""
    found = {}
    for title, options in (("", []), (", leaks without cuDNN", ["--suite", "leaks", "--set", "cudnn_library="])) if c.cuda else (("", []),):
        r = c.call(f"conform{title}", [c.home / "ddpengine", "conform", plugin, "--quick", *options], check=False)
        line = re.findall(r"^\d+ passed, .*$", r.stdout, re.M)
        bad = re.findall(r"^.*(?:FAIL|failed:).*$", r.stdout, re.M)
        if not line or (bad and not (c.cuda and title == "" and all(", leaks: " in b and "of memory more" in b for b in bad))):
            raise Failure(f"exit {r.returncode}{title}: {(bad or line or [last_line(r.stderr)])[0].strip()[:200]}")
        found[title] = line[0] + (f" ({bad[0].strip()})" if bad else "")
    c.row(what, "ok", "; ".join(f"{line}{title}" for title, line in found.items()))


# ---- loss curves -------------------------------------------------------------------------------------------------------------------
def curves(c):
    for name, model in small_models(c).items():
        c.part(f"{name}, f32 against cpu", curve, c, name, model)


def within(c, what, ours, theirs, bounds):
    d = apart(ours, theirs)
    early, late = max(d[:EARLY]), max(d)
    text = (f"{early:.1e} in {EARLY} steps (bound {bounds[0]:.0e}), {late:.1e} in {len(d)} (bound {bounds[1]:.0e}); "
            f"loss {ours[0]:.4f} to {ours[-1]:.4f}" if late < math.inf else f"a loss is not finite: {ours}")
    c.row(what, "ok" if early <= bounds[0] and late <= bounds[1] else "FAILED", text, early=early, late=late, losses=ours, reference=theirs)


def curve(c, name, model):
    cpu = c.train(f"{name}-cpu", model, steps_of(c), {"train": {"device": "cpu"}})
    f32 = c.train(f"{name}-f32", model, steps_of(c))
    within(c, f"{name}, f32 against cpu", f32.losses, cpu.losses, F32[name])
    c.part(f"{name}, bf16 against f32", curve_bf16, c, name, model, f32)


def curve_bf16(c, name, model, f32):
    bf16 = c.train(f"{name}-bf16", model, steps_of(c), {"train": {"precision": "bf16"}})
    within(c, f"{name}, bf16 against f32", bf16.losses, f32.losses, BF16[name])


def repeat(c):
    models = small_models(c)
    for name, precision in (("mlp", "f32"), ("lenet", "f32"), ("resnet", "bf16"), ("gpt", "bf16")):
        c.part(f"{name}, {precision}, twice", twice, c, name, models[name], precision)


def twice(c, name, model, precision):
    config = merged(model, steps_of(c), {"train": {"precision": precision, "deterministic": "yes"}})
    a, b = (c.train(f"{name}-again", config) for _ in range(2))
    same = a.sha == b.sha and a.losses == b.losses
    c.row(f"{name}, {precision}, deterministic = yes, twice", "ok" if same else "FAILED", f"parameters {a.sha[:12]} and {b.sha[:12]}")


# ---- checkpoints -------------------------------------------------------------------------------------------------------------------
def checkpoint(c):
    models = small_models(c)
    for name in ("mlp", "gpt"):
        c.part(f"{name}, moved between devices", moved, c, name, models[name])


def moved(c, name, model):
    """Half of the steps on one device, the rest on the other, both ways, against all of them on one."""
    half, all_steps = 10, 20
    straight = c.train(f"{name}-straight", model, {"train": {"max_steps": all_steps}})
    for first, second in ((c.device(), "cpu"), ("cpu", c.device())):
        folder = {"checkpoint": {"dir": c.work / f"{name}-{first.replace(':', '')}-checkpoints"}}
        c.train(f"{name}-first", model, folder, {"train": {"device": first, "max_steps": half}})
        rest = c.train(f"{name}-rest", model, folder, {"train": {"device": second, "max_steps": all_steps}})
        if rest.steps[0]["step"] != half + 1:
            raise Failure(f"it went on at step {rest.steps[0]['step']}")
        worst = max(apart(rest.losses, straight.losses[half:]))
        c.row(f"{name}, {half} steps on {first}, {half} on {second}", "ok" if worst <= 1e-3 else "FAILED",
              f"losses within {worst:.1e} of a straight run's (bound 1e-3)", late=worst)
        shutil.rmtree(folder["checkpoint"]["dir"])


# ---- compute-sanitizer -------------------------------------------------------------------------------------------------------------
def sanitizer(c):
    places = ("compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer", "/usr/local/cuda/compute-sanitizer/compute-sanitizer")
    tool = next((t for t in places if shutil.which(t)), None)
    if tool is None:
        raise Impossible(f"no {places[0]} in $PATH or /usr/local/cuda: memory, races and first reads are NOT checked")
    text = c.call("sanitizer", [tool, "--help"], limit=20, check=False).stdout
    flash = ["--kernel-name", "kernel_substring=flash"] if "--kernel-name" in text else ["--kernel-regex", "kns=flash"]
    models = small_models(c)
    c.part("the flash kernels are run", flash_runs, c, models["gpt"])
    beside(c, [(what, sanitized, c, what, [tool, "--tool", kind, *(flash if kind == "racecheck" else [])], models[name], "own" in what)
               for kind, name, what in SANITIZED for what in [f"{kind} of {what}"]])


SANITIZED = (("memcheck", "mlp", "mlp"), ("memcheck", "gpt", "gpt"), ("memcheck", "gpt", "gpt, own attention"), ("memcheck", "resnet", "resnet"),
             ("racecheck", "gpt", "gpt, own attention"), ("initcheck", "gpt", "gpt"), ("initcheck", "mlp", "mlp"), ("synccheck", "gpt", "gpt, own attention"))


def sanitized_config(c, model, own):
    """Nothing is measured, since instrumented times are nobody's, and kernels are started one by one. own: without cuDNN."""
    keys = {"graphs": "no", "algorithm_cache": "off", **({"cudnn_library": ""} if own else {})}
    return merged(model, {"train": {"max_steps": 2, "batch_size": 3, "precision": "bf16", "deterministic": "yes"}},
                  {"device.cuda": {k: v for k, v in keys.items() if k in c.device_keys}})


def flash_runs(c, model):
    plan = c.plan("racecheck", sanitized_config(c, model, True))
    missing = {"attention(flash)", "attention_grad(flash)"} - set(plan.kernels)
    if missing:
        raise Failure(f"{' and '.join(sorted(missing))} would not run; there is {', '.join(plan.paths()) or 'no attention'}")
    c.row("the flash kernels are run", "ok", ", ".join(f"{n} {kernel}" for kernel, n in sorted(plan.paths().items())))


def sanitized(c, what, command, model, own):
    """Errors in the kernels of NVIDIA's libraries are told, and fail nothing."""
    ini, _ = c.prepare(sanitized_config(c, model, own), what.replace(" ", "-"))
    command = [*command, "--error-exitcode", "99", "--target-processes", "all", "--print-limit", "50"]
    r = c.call(what, [*command, c.home / "ddpengine", "-c", ini], check=False)
    text = r.stdout + r.stderr
    found = re.findall(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): (\d+)", text)
    refused = re.search(r"^.*(?:Internal Sanitizer Error|[Dd]evice not supported|not supported on this (?:device|platform)).*$", text, re.M)
    if refused or not found:
        raise Impossible(f"the tool did not work: {(refused.group(0).strip() if refused else last_line(text))[:200]}")
    kernels = sorted(set(re.findall(r"=+\s+at (?:void )?([\w:]+)", text)))
    ours = [k for k in kernels if not OWN_LIBRARIES.search(k)]
    errors = sum(map(int, found))
    if errors and (ours or not kernels):
        raise Failure(f"{errors} errors, in {', '.join(ours) or 'places it does not name'}")
    if r.returncode not in (0, 99):
        raise Failure(f"exit {r.returncode}: {last_line(r.stderr)}")
    c.row(what, "ok", f"{errors} errors{' in kernels of libraries: ' + ', '.join(kernels)[:80] if kernels else ''}, {r.seconds:.0f} s")


# ---- ranks -------------------------------------------------------------------------------------------------------------------------
def ranks(c):
    models = small_models(c)
    for name, backend in (("mlp", "gloo-tcp"), ("gpt", "gloo-tcp"), ("gpt", "shm")):
        c.part(f"{name}, two ranks over {backend}", two_ranks, c, name, models[name], backend)
    c.part("parallel = dp", replicas, c, models["gpt"])


def halved(model):
    """The same global batch, which two ranks or replicas share."""
    return merged(model, {"train": {"batch_size": None, "global_batch": model["train"]["batch_size"]}})


def two_ranks(c, name, model, backend):
    config = merged(halved(model), steps_of(c, 20))
    one = c.train(f"{name}-one", config)
    two = c.train(f"{name}-two", config, {"group": {"backend": backend}}, nproc=2)
    within(c, f"{name}, two ranks on one device over {backend} against one rank", two.losses, one.losses, (1e-5, 1e-3))


def replicas(c, model):
    if c.cuda and gpus(c) < 2:
        raise Impossible("this machine has one GPU")
    config = merged(halved(model), steps_of(c, 20))
    one = c.train("dp-one", config)
    two = c.train("dp-two", config, {"train": {"parallel": "dp", "device": "cuda:0, cuda:1" if c.cuda else "cpu:0, cpu:1"}})
    within(c, "gpt, parallel = dp on two devices against one", two.losses, one.losses, (1e-5, 1e-3))


# ---- nccl --------------------------------------------------------------------------------------------------------------------------
SLOW = {"NCCL_SOCKET_IFNAME": "=lo", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}
REFUSED = re.compile(r"[Dd]uplicate GPU|invalid usage|ncclInvalidUsage|unhandled system error|cannot be loaded")


def nccl(c):
    if not c.cuda:
        c.row("nccl", "n/a", "not possible: without a GPU")
        return
    c.part("backend's slots, one rank", slots, c, "backend's slots, one rank", ["--world", "1", "--max", str(64 << 20)], {})
    c.part("backend's slots, two ranks on one GPU", slots, c, "backend's slots, two ranks on one GPU",
           ["--world", "2", "--one-gpu", "--max", str(1 << 20)], SLOW)
    c.part("one rank", nccl_alone, c)
    c.part("two ranks on one GPU", nccl_pair, c)


def slots(c, what, arguments, env):
    program = c.home / "tests/gpu/nccl_slots"
    if not program.exists():
        raise Impossible("nccl_slots is not built: make tests/gpu/nccl_slots before pack")
    env = {**env, "LD_LIBRARY_PATH": ":".join(filter(None, [str(c.home / "lib"), c.env["DDP_CUDA_LIBRARIES"], c.env.get("LD_LIBRARY_PATH")]))}
    r = c.call(what, [program, c.home / ".libs/backend_nccl.so", *arguments], env=env, check=False)
    bad = re.findall(r"rank \d+ +(.*?) +FAILED: (.*)", r.stdout)
    if r.returncode != 0 or bad:
        text = f"{bad[0][0]}: {bad[0][1]}" if bad else f"exit {r.returncode}: {last_line(r.stderr or r.stdout)}"
        raise Impossible(text[:250]) if REFUSED.search(r.stdout + r.stderr) else Failure(text)
    rates = re.findall(r"^ +(\d+) +([\d.]+) +([\d.]+) +([\d.]+)$", r.stdout, re.M)
    c.row(what, "ok", f"{len(re.findall(r' ok$', r.stdout, re.M))} checks" + (f"; {rates[-1][0]} bytes in {rates[-1][1]} us" if rates else ""))


def nccl_alone(c):
    config = merged(small_models(c)["gpt"], steps_of(c, 20))
    plain = c.train("nccl-none", config)
    engaged = c.train("nccl-one", config, {"group": {"backend": "nccl"}, "ddp": {"shard_update": "no", "overlap": "yes"}})
    within(c, "gpt, one rank over nccl against none", engaged.losses, plain.losses, (1e-6, 1e-3))


def nccl_pair(c):
    """Two processes that NCCL takes for two hosts."""
    config = merged(halved(small_models(c)["gpt"]), steps_of(c, 20))
    one = c.train("nccl-single", config)
    rendezvous = f"file://{c.work}/nccl-rendezvous"
    runs, errors = [], []

    def rank(number):
        ini, out = c.prepare(merged(config, {"group": {"backend": "nccl", "rank": number, "world_size": 2, "init_method": rendezvous},
                                             "init.file": {"listen": "127.0.0.1"}}), f"nccl-rank{number}")
        env = {**SLOW, "NCCL_HOSTID": f"ddpengine-{number}"}
        r = c.call(f"nccl-rank{number}", [c.home / "ddpengine", "-c", ini], env=env, limit=60, check=False)
        if r.returncode != 0:
            errors.append(last_line(r.stderr))
        elif number == 0:
            runs.append(Run(out, r.stderr, r.seconds))

    def guarded(number):
        try:
            rank(number)
        except Failure as e:
            errors.append(str(e))
    threads = [threading.Thread(target=guarded, args=(n,)) for n in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise Impossible(errors[0]) if any(REFUSED.search(e) for e in errors) else Failure("; ".join(errors)[:300])
    within(c, "gpt, two ranks on one GPU over nccl against one rank", runs[0].losses, one.losses, (1e-5, 1e-3))
