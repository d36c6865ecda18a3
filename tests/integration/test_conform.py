"""ddpengine conform: every built backend passes, every deliberately broken one is caught by the case that is about its fault."""
import ctypes
import gzip
import os
import pathlib
import re
import signal
import struct
import subprocess
import tarfile
import sys

import harness
from harness import SRC, Case, Skip, long_case, seldom

SKELETON = SRC / "docs/examples/backend-skeleton"
HOOK = SRC / "docs/examples/hook-skeleton"


class Conform(Case):
    def build(self, fault, name):
        """The example backend with one fault; 0: none."""
        out = self.dir / f"backend_{name}.so"
        subprocess.run(["cc", "-std=gnu11", "-O1", "-fPIC", "-fvisibility=hidden", "-shared", f"-DBREAK={fault}", f'-DNAME="{name}"',
                        f"-I{SRC}/core/include", f"-I{SKELETON}", str(SRC / "tests/fixtures/plugins/broken_backend.c"),
                        "-o", str(out), "-lpthread", "-Wl,-z,nodelete"], check=True)  # the threads that it leaks need their code
        return out

    def caught(self, fault, *args, failure):
        """Exit 3, and the only suite with failures is the one that the fault is about."""
        r = self.run("conform", self.build(fault, "faulty"), "--quick", "--nproc", 2, *args)
        self.equal(r.code, 3, r)
        self.check(re.search(failure, r.out), (failure, r))
        suites = set(re.findall(r"world \d+  (\w+) +\d+ passed, \d+ failed", r.out))
        return r, suites

    # ---- right ones ------------------------------------------------------------------------------------------------
    @long_case
    def test_every_built_backend_passes(self):
        listed = re.findall(r"^backend +(\S+)", self.run("plugins").out, re.M)
        self.check("gloo-tcp" in listed, listed)
        for name in listed:
            if name == "nccl":
                continue
            r = self.run("conform", f"backend.{name}", "--quick", timeout=240)
            self.equal(r.code, 0, r)
            self.check(re.search(r"^\d+ passed, 0 failed, \d+ skipped$", r.out, re.M), r)
            print(f"# {name}: {r.out.splitlines()[-1]}, {r.seconds:.1f} s", flush=True)

    def test_nccl_passes_where_a_gpu_is(self):
        if "nccl" not in self.run("plugins").out:
            raise Skip("backend nccl is not built")
        r = self.run("conform", "backend.nccl", "--quick", timeout=240)
        if r.code == 3 and "passed" not in r.out:  # its check says why
            self.equal(len(r.errors()), 1, r)
            raise Skip(r.errors()[0])
        self.equal(r.code, 0, r)

    @seldom
    def test_the_unbroken_example_passes(self):
        r = self.run("conform", self.build(0, "whole"), "--quick", timeout=240)
        self.equal(r.code, 0, r)
        for part in ("refused as `supports` says: i32 avg", "reduce: the backend does not offer it", "covered, with right results",
                     "reduce_scatter"):
            self.check(part in r.out, (part, r))

    def test_options_reach_the_plugin(self):
        plugin = self.build(0, "whole")
        r = self.run("conform", plugin, "--quick", "--nproc", 2, "--suite", "results", "--set", "chunk=512KiB")
        self.equal(r.code, 0, r)
        self.fails(self.run("conform", plugin, "--set", "chunk=3"), 2, "chunk", "1KiB")
        self.fails(self.run("conform", plugin, "--set", "chunks=4KiB"), 2, "chunks", "chunk")

    # ---- broken ones -------------------------------------------------------------------------------------------------
    @seldom
    def test_wrong_sum_at_odd_sizes(self):
        r, suites = self.caught(1, "--suite", "results", failure=r"all_reduce of (77|1023) \w+, (sum|avg|min|max).*: rank \d: element")
        self.check(not re.search(r"FAILED.*all_reduce of [01] ", r.out), r)

    def test_stale_buffer(self):
        r, suites = self.caught(2, "--suite", "results", failure=r"all_reduce of \d+ .*: rank \d: element 0 is ")
        self.equal(suites, {"results"})

    @seldom
    def test_deadlock_on_abort(self):
        r, suites = self.caught(3, "--suite", "abort", failure=r"abort within all_reduce: rank \d: .*does not return within \d+ ms")
        self.equal(suites, {"abort"})

    def test_off_by_one_rank_order(self):
        r, suites = self.caught(4, "--suite", "results", failure=r"all_gather of \d+ .*: rank \d: in the part of rank 0 element 0")
        self.check(not re.search(r"FAILED.*(all_reduce|broadcast)", r.out), r)
        self.check("world 1  results" in r.out and "FAILED world 1" not in r.out, r)

    def test_count_that_wraps_around(self):
        r, suites = self.caught(8, "--suite", "refusals", failure=r"all_reduce: a count of \d{19} f32, more than memory can hold, is accepted")
        self.equal(suites, {"refusals"})

    @long_case
    def test_leaks(self):
        for fault, what in ((5, r"\d+ descriptors more after the last 50 of 100 opens"), (6, r"\d+ threads more after the last 50 of 100 opens")):
            r, suites = self.caught(fault, "--suite", "leaks", failure=what)
            self.equal(suites, {"leaks"}, r)
        if harness.SANITIZED:
            return  # the sanitizer's allocator has its own leak checker, and the fixture keeps its pointers
        self.caught(7, "--suite", "leaks", failure=r"\d+ KiB of memory more after the last 50 of 100 opens")

    def test_a_crash_costs_its_case_alone(self):
        source = (SKELETON / "backend_store.c").read_text()
        crash = source.replace("static ddp_status broadcast(ddp_comm *c,", "static ddp_status crashing(ddp_comm *c,").replace(
            "static ddp_status all_gather(", "static ddp_status broadcast(ddp_comm *c, const ddp_coll *a, ddp_work **out, ddp_err *err)\n"
            "{ if (a->count == 1) __builtin_trap(); return crashing(c, a, out, err); }\nstatic ddp_status all_gather(", 1)
        self.check(crash != source)
        (self.dir / "crash.c").write_text(crash)
        out = self.dir / "backend_store.so"
        subprocess.run(["cc", "-std=gnu11", "-fPIC", "-fvisibility=hidden", "-shared", f"-I{SRC}/core/include",
                        str(self.dir / "crash.c"), "-o", str(out)], check=True)
        r = self.run("conform", out, "--quick", "--nproc", 2, "--suite", "results")
        self.equal(r.code, 3, r)
        self.check(re.search(r"FAILED world 2, broadcast of 1 .*: rank \d: was killed by signal [45]", r.out), r)
        passed, failed = map(int, re.search(r"world 2  results +(\d+) passed, (\d+) failed", r.out).groups())
        self.check(failed <= 4 and passed > 40, r)

    # ---- the other kinds -------------------------------------------------------------------------------------------
    def files_for(self, kind, name):
        """What a dataset or model that reads files is told by --set."""
        if (kind, name) == ("model", "layers"):
            return "--set", f"net={SRC / 'conf/nets/lenet.net'}"
        if (kind, name) == ("dataset", "cifar"):
            for n in range(1, 6):
                (self.dir / f"data_batch_{n}.bin").write_bytes(b"".join(bytes([k]) + os.urandom(3072) for k in range(n + 3)))
        elif (kind, name) == ("dataset", "stl10"):
            (self.dir / "train_X.bin").write_bytes(os.urandom(7 * 27648))
            (self.dir / "train_y.bin").write_bytes(bytes(range(1, 8)))
        elif (kind, name) == ("dataset", "tokens"):
            return "--set", f"files={SRC / 'docs'}/*.md", "--set", "context=33"
        elif (kind, name) == ("dataset", "csv"):
            (self.dir / "t.csv").write_text("a,b,y\n" + "".join(f"{n / 7},{'pqr'[n % 3]},{n % 4}\n" for n in range(200)))
            return "--set", f"path={self.dir}/t.csv", "--set", "target=y"
        elif (kind, name) == ("dataset", "npy"):
            for key, descr, shape, data in (("x", "|u1", "(30, 9, 8, 3)", os.urandom(30 * 216)), ("y", "<i2", "(30,)", bytes(range(60)))):
                head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}".encode()
                (self.dir / f"{key}.npy").write_bytes(b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head + data)
            return "--set", f"input={self.dir}/x.npy", "--set", f"label={self.dir}/y.npy"
        elif (kind, name) == ("dataset", "folder"):
            stored = SRC / "tests/parity/vectors/images"
            (self.dir / "list").write_text("".join(f"{p.name},{n % 3}\n" for n, p in enumerate(sorted(stored.glob("*.*g")))))
            return "--set", f"list={self.dir}/list", "--set", f"path={stored}"
        elif (kind, name) == ("dataset", "tar"):
            with tarfile.open(self.dir / "a.tar", "w") as t:
                for n, p in enumerate(sorted((SRC / "tests/parity/vectors/images").glob("*.webp"))):
                    (self.dir / "cls").write_text(str(n % 2))
                    t.add(p, f"{n}.webp")
                    t.add(self.dir / "cls", f"{n}.cls")
            return "--set", f"files={self.dir}/a.tar"
        elif (kind, name) == ("dataset", "jsonl"):
            (self.dir / "t.jsonl").write_text("".join(f'{{"text": "text number {n}"}}\n' for n in range(300)))
            return "--set", f"files={self.dir}/t.jsonl", "--set", "context=33"
        elif (kind, name) == ("dataset", "sft"):
            (self.dir / "s.jsonl").write_text("".join(f'{{"instruction": "say {n}", "output": "{n}"}}\n' for n in range(50)))
            return ("--set", f"files={self.dir}/s.jsonl", "--set", "packing=separate", "--set", "length=64",
                    "--set", f"tokenizer={SRC}/tests/parity/vectors/sft/llama3")
        elif (kind, name) == ("model", "llama"):
            sizes = {"vocabulary": 64, "width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate": 48}
            return [x for key, size in sizes.items() for x in ("--set", f"{key}={size}")]
        elif (kind, name) == ("dataset", "idx"):
            for key, head, rest in (("images", (0x0803, 50, 28, 28), os.urandom(50 * 784)),
                                    ("labels", (0x0801, 50), bytes(range(10)) * 5)):
                (self.dir / f"{key}.gz").write_bytes(gzip.compress(struct.pack(f">{len(head)}I", *head) + rest))
            return "--set", f"images={self.dir}/images.gz", "--set", f"labels={self.dir}/labels.gz"
        else:
            return ()
        return "--set", f"folder={self.dir}"

    @seldom
    def test_every_other_built_plugin_passes(self):
        listed = re.findall(r"^(init|device|model|sampler|dataset) +(\S+)", self.run("plugins").out, re.M)
        self.check(len(listed) >= 8, listed)
        for kind, name in listed:
            self.environ = {} if kind == "device" else harness.QUICK
            r = self.run("conform", f"{kind}.{name}", "--nproc", 3, *self.files_for(kind, name))
            if kind == "device" and name != "cpu" and r.code == 3:  # needs hardware
                print(f"# {name} is not checked here: {r.errors() or r.out}", flush=True)
                continue
            self.equal(r.code, 0, r)
            self.check(re.search(r"^\d+ passed, 0 failed, 0 skipped$", r.out, re.M), r)

    def faulty(self, source, old, new, kind, name, flags=()):
        """A plugin of the project with one line changed must fail; returns the output."""
        text = (SRC / source).read_text()
        self.check(old in text, old)
        (self.dir / "faulty.c").write_text(text.replace(old, new))
        out = self.dir / f"{kind}_{name}.so"
        subprocess.run(["cc", "-std=gnu11", "-fPIC", "-fvisibility=hidden", "-shared", f"-I{SRC}/core/include",
                        f"-I{(SRC / source).parent}", *flags, str(self.dir / "faulty.c"), "-o", str(out), "-lm"], check=True)
        r = self.run("conform", out, "--nproc", 2)
        self.equal(r.code, 3, r)
        return "\n".join(line for line in r.out.splitlines() if line.startswith("FAILED"))

    def test_faulty_samplers(self):
        line = "out[i] = s->rank + i * s->world"
        for new, part in (("static uint64_t drawn; out[i] = (s->rank + i * s->world + drawn++) % (s->rank + s->count * s->world)", "index|depends"),
                          ("out[i] = s->rank + (i + 1) * s->world", r"index \d+ of a dataset"),
                          ("out[i] = out[i + 1] = s->rank + i * s->world", "wrote more than")):
            shown = self.faulty("samplers/sequential.c", "(uint64_t i = 0; i < s->count; i++) " + line,
                                "(uint64_t i = 0; i < s->count; i++) { " + new + "; }", "sampler", "sequential")
            self.check(re.search(part, shown), (part, shown))

    def test_faulty_model(self):
        shown = self.faulty("docs/examples/model-example/model_resmlp.c", 'ddp_graph_status(g, err)',
                            '(ddp_linear(g, ddp_flatten(g, ddp_input(g, "image")), 3, 1, "unused"), ddp_graph_status(g, err))',
                            "model", "resmlp")
        self.check("unused" in shown, shown)

    def test_faulty_init(self):
        shown = self.faulty("plugins/init/tcp/tcp.c", "memcpy(endpoint, i->endpoint, sizeof(i->endpoint));",
                            'memcpy(endpoint, "127.0.0.1", 10); (void)i;', "init", "tcp")
        self.check("the rendezvous fails at tcp" in shown, shown)

    def test_faulty_datasets(self):
        source = """
#include <ddpengine/dataset.h>
#include <stdlib.h>
struct ddp_dataset { int64_t label; };
static ddp_status open_it(const ddp_host *h, const void *c, ddp_dataset **out, ddp_err *err)
{ (void)h; (void)c; (void)err; *out = calloc(1, sizeof(**out)); return DDP_OK; }
static void close_it(ddp_dataset *d) { free(d); }
static uint64_t length(const ddp_dataset *d) { (void)d; return 100; }
static uint32_t fields(const ddp_dataset *d, const ddp_field **out)
{ static const ddp_field f[] = {{"label", DDP_I64, 0, {0}, 0, 9}, {"input", DDP_F32, 1, {3}, 1, 0}}; (void)d; *out = f; return 2; }
static uint64_t fingerprint(const ddp_dataset *d) { (void)d; return 7; }
static ddp_status read_it(const ddp_dataset *d, uint64_t i, uint64_t e, void *const *b, ddp_err *err)
{ int64_t l = (int64_t)(i % 10); float x[4] = {(float)i, 1, 2, 3}; (void)d; (void)e; (void)err; READ
  __builtin_memcpy(b[0], &l, 8); __builtin_memcpy(b[1], x, N * 4); return DDP_OK; }
static const char *describe(const ddp_dataset *d) { (void)d; return TEXT == 5 ? "a\\tb\\n" : TEXT == 6 ? "a" : "a\\n"; }
static const ddp_dataset_ops ops = { sizeof(ops), sizeof(ddp_field), open_it, close_it, length, fields, fingerprint, read_it, describe };
DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = { DDP_PLUGIN_HEAD(DATASET, 0), DDP_PLUGIN_TAIL("small", "1", "s", DDP_NO_OPTIONS, ops) };
"""
        (self.dir / "small.c").write_text(source)
        out = self.dir / "dataset_small.so"
        for n, read, part in ((3, "", None), (5, "", "describe has the byte 9"), (6, "", "has no newline"), (2, "", "is not the same every time"), (4, "", 'wrote outside field "input"'),
                              (3, "l = (int64_t)(i % 11);", '"label" says 0 .. 9 and holds 10'),
                              (3, "static int again; if (++again > 300) x[0]++;", "is not the same every time"),
                              (3, "static int n; if (n++ == 0) return DDP_ERR_DATA;", "no reason given")):
            subprocess.run(["cc", "-std=gnu11", "-fPIC", "-shared", f"-I{SRC}/core/include", f"-DN={n if n < 5 else 3}", f"-DTEXT={n}",
                            f"-DREAD={read}",
                            str(self.dir / "small.c"), "-o", str(out)], check=True)
            r = self.run("conform", out)
            self.equal(r.code, 0 if part is None else 3, r)
            self.check(part is None or part in r.out, (part, r))

    # ---- hooks -----------------------------------------------------------------------------------------------------
    def build_hook(self, fault):
        """The example hook with one fault; 0: none."""
        out = self.dir / "hook_faulty.so"
        subprocess.run(["cc", "-std=gnu11", "-O1", "-fPIC", "-fvisibility=hidden", "-shared", f"-DBREAK={fault}", f"-I{SRC}/core/include",
                        f"-I{HOOK}", str(SRC / "tests/fixtures/plugins/broken_hook.c"), "-o", str(out)], check=True)
        return out

    @long_case
    def test_every_built_hook_passes(self):
        for name in re.findall(r"^hook +(\S+)", self.run("plugins").out, re.M):
            for settings in ((), ("--set", "rank=1", "--set", "start_step=1")) if name == "powersgd" else ((),):
                r = self.run("conform", f"hook.{name}", *settings, timeout=240)
                self.equal(r.code, 0, r)
                self.check(re.search(r"^\d+ passed, 0 failed, \d+ skipped$", r.out, re.M), r)
                print(f"# {name}: {r.out.splitlines()[-1]}, {r.seconds:.1f} s", flush=True)

    @long_case
    def test_the_unbroken_example_hook_passes(self):
        plugin = self.build_hook(0)
        for settings in ((), ("--set", "carry=no")):  # without a state every single result is checked
            r = self.run("conform", plugin, "--nproc", 4, *settings, timeout=240)
            self.equal(r.code, 0, r)
            for world in (1, 2, 3, 4):
                self.check(re.search(rf"world {world}  pair +1 passed", r.out), r)
        self.fails(self.run("conform", plugin, "--set", "carrry=no"), 2, "carrry", "carry")

    @long_case
    def test_faulty_hooks(self):
        """By fault: every suite that fails, None where others may by chance, and the words of one failure."""
        everywhere = {"open", "results", "order", "state", "memory", "growth", "pair", "leaks"}
        if harness.SANITIZED:
            everywhere.discard("memory")
        for fault, suites, failure in (
                (1, everywhere, r"world 1, .*update 1: memory outside bucket 1 was written"),
                (2, everywhere, r"element 15 of bucket 0, between its tensors, is no longer 0"),
                (3, everywhere - {"leaks"}, r"world 2, .*: update 1003: what is left in bucket 0 differs from rank \d's"),
                (4, {"results"}, r"the mean: rank \d: the sum of 512 updates .* misses the mean of \"[abce]\.\w+\" by 0\.00"),
                (5, {"results", "state"}, r"world 1, state: .*`states` is not all that it remembers"),
                (6, None, r"order: rank \d: when all buckets are compressed before the first|order: rank \d: when buckets overlap"),
                (7, {"memory"}, r"update 1002: 50\d\d bytes of memory more when a collective was called"),
                (8, {"leaks"}, r"\d+ KiB of memory more after the last 50 of 100 opens"),
                (9, everywhere, r"all_gather is called outside `exchange`"),
                (10, everywhere, r"exchange calls all_gather, which `needs` does not name"),
                (11, {"refusals"}, r"gradients of dtype i32: open answers \"ok\""),
                (12, {"growth"}, r"growth: rank \d: open: .*bucket 1 has gradients of dtype 4294967295"),
                (13, everywhere, r"world 2, .*calls all_gather of \d+ bf16 where rank \d calls all_gather of \d+ bf16"),
                (14, {"results"}, r"gradients of zero, then others: .*element 0 of bucket 2 is 1e-07"),
                (15, {"pair"}, r"two instances at once have other results than one alone"),
                (16, {"open", "state"}, r"the list of states changes with update 1"),
                (17, {"results"}, r"world 2, the mean: .* by 0\.\d"),
                (18, {"open"}, r"two states are called \"rest\.0\""),
                (19, {"refusals"}, r"refused without a reason")):
            if harness.SANITIZED and fault in (7, 8):
                continue  # its allocator does not tell, and has a leak checker of its own
            r = self.run("conform", self.build_hook(fault), "--nproc", 2)
            self.equal(r.code, 3, (fault, r))
            self.check(re.search("FAILED.*" + failure, r.out), (fault, failure, r))
            failed = set(re.findall(r"world \d+  (\w+) +\d+ passed, \d+ failed", r.out))
            self.check(suites is None or failed == suites, (fault, failed, r))

    # ---- the command ---------------------------------------------------------------------------------------------------
    def test_usage(self):
        for args, part in (((), "which plugin"), (("gloo-tcp", "--nproc", "0"), "--nproc"), (("gloo-tcp", "--nproc", "9"), "1 to 8"),
                           (("gloo-tcp", "--nonsense"), "--nonsense"), (("a", "b"), "too many"), (("a", "--set", "b"), "key=value"),
                           (("gloo-tcp", "--suite", "result"), "results"), (("gloo-tcp", "--nproc"), "--nproc")):
            self.fails(self.run("conform", *args), 2, part)
        r = self.run("conform", "--help")
        self.equal(r.code, 0, r)
        self.check("--quick" in r.out, r)

    def test_what_does_not_load(self):
        self.fails(self.run("conform", "nonsense"), 3, "nonsense", "plugins")
        self.fails(self.run("conform", "./nonsense.so"), 3, "nonsense.so")
        self.fails(self.run("conform", "backend.gloo-tpc"), 3, "gloo-tcp")
        plain = self.dir / "backend_text.so"
        plain.write_text("#!/bin/sh\n")
        self.fails(self.run("conform", plain), 3, "ELF")

    def test_output_that_cannot_be_written(self):
        with open("/dev/full", "w") as full:
            r = subprocess.run([harness.ENGINE, "conform", "gloo-tcp", "--quick", "--nproc", "1", "--suite", "order"], stdout=full,
                               stderr=subprocess.PIPE, text=True, cwd=self.dir)
        self.equal(r.returncode, 1, r)
        self.check("cannot write to standard output" in r.stderr, r)

    def test_a_signal_ends_all_ranks(self):
        p = self.start("conform", "gloo-tcp", "--nproc", 2, "--suite", "leaks")
        ranks = self.children(p, 2)
        p.send_signal(signal.SIGTERM)
        r = self.finish(p)
        self.equal(r.code, 128 + signal.SIGTERM, r)
        self.check(not any(pathlib.Path(f"/proc/{pid}").exists() for pid in ranks), "ranks are left")

    def test_a_dead_parent_leaves_no_ranks(self):
        """The ranks become this process's children then, so that it sees what ended them."""
        libc = ctypes.CDLL(None)
        self.equal(libc.prctl(36, 1, 0, 0, 0), 0)  # PR_SET_CHILD_SUBREAPER
        try:
            p = self.start("conform", "gloo-tcp", "--nproc", 2, "--suite", "leaks")
            ranks = self.children(p, 2)
            os.kill(p.pid, signal.SIGKILL)
            p.wait()
            for pid in ranks:
                # killed with it, or it saw at its very beginning that the parent had gone
                self.check(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) in (-signal.SIGKILL, 1))
        finally:
            libc.prctl(36, 0, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(harness.main(Conform))
