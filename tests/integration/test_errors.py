"""Mistakes that users make: one clear line, the documented exit code, nothing left behind."""
import gzip
import os
import pathlib
import re
import resource
import signal
import struct
import subprocess
import sys

import harness
from harness import Case, Skip, children_of, long_case


def idx(kind, dims, body):
    return struct.pack(">HBB", 0, kind, len(dims)) + b"".join(struct.pack(">I", d) for d in dims) + body


class Errors(Case):
    def bad(self, text, code, *parts, name="x.ini", args=()):
        r = self.run("-c", self.ini(name, text=text), "--check", *args)
        self.fails(r, code, *parts)

    # ---- config -----------------------------------------------------------------------------------------------------
    def test_unknown_key_names_place_and_nearest(self):
        self.bad("[train]\nbach_size = 3\n", 2, "x.ini:2", "bach_size", "batch_size")

    def test_unknown_section(self):
        self.bad("\n[trian]\nseed = 3\n", 2, "x.ini:2", "trian", "train")

    def test_bad_unit(self):
        self.bad("[group]\nrendezvous_timeout = 5 parsecs\n", 2, "x.ini:2", "rendezvous_timeout", "5 parsecs")

    def test_out_of_range(self):
        self.bad("[train]\nepochs = -1\n", 2, "x.ini:2", "epochs", "-1")

    def test_long_line(self):
        self.bad("[train]\nseed = " + "1" * 100000 + "\n", 2, "x.ini:2")

    def test_nul(self):
        path = self.dir / "x.ini"
        path.write_bytes(b"[train]\nseed = 1\x002\n")
        self.fails(self.run("-c", path), 2, "x.ini:2")

    def test_include_of_itself(self):
        self.bad("include = x.ini\n[train]\nseed = 1\n", 2, "x.ini:1", "include")

    def test_missing_file_and_missing_include(self):
        self.fails(self.run("-c", self.dir / "none.ini"), 2, "none.ini")
        self.bad("include = other.ini\n", 2, "x.ini:1", "other.ini")

    def test_names_that_are_empty(self):
        for section, key in (("group", "backend"), ("train", "device"), ("sampler", "plugin"), ("checkpoint", "resume")):
            r = self.run("-c", self.ini("x.ini", {section: {key: ""}}), "--check")
            self.fails(r, 2, "x.ini:", f"[{section}] {key}", "empty")

    def test_place_of_a_choice_that_cannot_be_had(self):
        for section, key, value, code in (("group", "backend", "none", 3), ("train", "device", "none", 3),
                                          ("model", "plugin", "none", 3), ("data", "plugin", "none", 3),
                                          ("sampler", "plugin", "none", 3), ("train", "device", "cpu:x", 2)):
            path = self.ini("x.ini", {section: {key: value}})
            line = path.read_text().splitlines().index(f"{key} = {value}") + 1
            self.fails(self.run("-c", path, "--check"), code, f"error: {path}:{line}: ")
        for url, code in (("none://x", 3), ("tcp://127.0.0.1", 2), ("127.0.0.1:1", 2)):
            r = self.run("-c", self.ini("x.ini", {"group": {"init_method": url, "world_size": 2}}), "--check")
            self.fails(r, code, re.compile(r"error: \S+/x\.ini:\d+: "), url.split(":")[0])

    def test_bytes_that_are_no_text_do_not_reach_the_terminal(self):
        path = self.dir / "x.ini"
        path.write_bytes(b"[train]\nsee\xff\xc2\x9b\xe2\x82d\xc3\xbc = 1\n")
        r = subprocess.run([str(harness.ENGINE), "-c", str(path)], capture_output=True)
        self.equal(r.returncode, 2, r)
        self.check("see?????d\u00fc" in r.stderr.decode(), r.stderr)

    def test_key_twice(self):
        self.bad("[train]\nseed = 1\nseed = 2\n", 2, "x.ini:3", "seed")

    def test_plugin_key(self):
        r = self.run("-c", self.ini("x.ini", {"model.mlp": {"hiden": "3"}}), "--check")
        self.fails(r, 2, "x.ini:", "hiden", "hidden")

    def test_batches_that_contradict(self):
        r = self.run("-c", self.ini("x.ini", {"train": {"batch_size": 16, "accumulate": 1, "global_batch": 100}}), "--check", "--nproc", 2)
        self.fails(r, 2, "global_batch", "100")

    def test_set(self):
        path = self.ini("x.ini")
        self.fails(self.run("-c", path, "--check", "--set", "train.sed=4"), 2, "--set", "sed", "seed")
        self.fails(self.run("-c", path, "--check", "--set", "nonsense"), 2, "nonsense")
        self.equal(self.run("-c", path, "--check", "--set", "train.seed=4").code, 0)

    def test_usage(self):
        self.equal(self.run().code, 2)
        self.equal(self.run("--nonsense").code, 2)
        self.fails(self.run("frobnicate"), 2, "frobnicate")
        self.fails(self.run("-c", self.ini("x.ini"), "--nproc", "0"), 2, "--nproc")

    def test_model_and_data_that_do_not_fit(self):
        r = self.run("-c", self.ini("x.ini", {"model.mlp": {"input": "image"}}), "--check")
        self.fails(r, 2, "image", "input")

    # ---- sampler ----------------------------------------------------------------------------------------------------
    def test_fewer_samples_than_ranks(self):
        config = {"data.synthetic": {"samples": 1}, "sampler": {"plugin": "distributed"}, "sampler.distributed": {"drop_last": "yes"}}
        r = self.run("-c", self.ini("x.ini", config), "--nproc", 2)
        self.fails(r, 2, "drop_last")

    # ---- limits of the process --------------------------------------------------------------------------------------
    def test_too_many_open_files(self):
        """Refused before anything is opened, so that every backend and plugin says the same; a soft limit is raised."""
        path = self.ini("x.ini", {"group": {"rendezvous_timeout": "2s"}})

        def limited(limit):
            return subprocess.run(["sh", "-c", f'ulimit {limit}; exec "$@"', "sh", str(harness.ENGINE), "-c", str(path),
                                   "--nproc", "2"], capture_output=True, text=True, timeout=harness.PATIENCE, check=False)

        for limit in (4, 13, 63):
            p = limited(f"-n {limit}")
            self.equal((p.returncode, len(p.stderr.splitlines())), (1, 1), (limit, p.stderr))
            self.check(f"may have {limit} files" in p.stderr and "raise the limit that ulimit -n shows" in p.stderr, p.stderr)
        for limit in ("-n 64", "-S -n 13"):
            p = limited(limit)
            self.equal(p.returncode, 0, (limit, p.stderr))

    def peak_of(self, pid):
        """Bytes of address space."""
        return 1024 * int(re.search(r"VmPeak:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1])

    def test_crash_for_lack_of_memory(self):
        """A library that crashes when it gets no memory, with a supervisor and without: the last line says so, of others it does not."""
        if harness.SANITIZED:
            raise Skip("a sanitizer reports crashes itself")
        endless = {"train": {"epochs": 100000}, "output": {"log_every": 50}}
        for nproc, room, signals in ((1, 1 << 20, True), (2, 1 << 20, True), (1, 1 << 40, False), (2, 1 << 40, False)):
            p = self.start("-c", self.ini("x.ini", endless), "--nproc", nproc)
            self.trained_a_while(p)
            rank = children_of(p.pid)[-1] if nproc > 1 else p.pid
            limit = self.peak_of(rank) + room
            resource.prlimit(rank, resource.RLIMIT_AS, (limit, limit))
            os.kill(rank, signal.SIGSEGV)
            r = self.finish(p)
            self.equal(r.code, 5 if nproc > 1 else -signal.SIGSEGV, r)
            self.equal(any(f"of the {limit >> 20} MiB of memory" in e and "ulimit -v" in e for e in r.errors()), signals, r)
            self.equal(len([e for e in r.errors() if "signal 11" in e]), 1 if nproc > 1 or signals else 0, r)

    @long_case
    def test_less_and_less_address_space(self):
        """Down from what a run needs: it ends with a line and an exit code, and does not crash. oneDNN did where code found no room."""
        if harness.SANITIZED:
            raise Skip("a sanitizer needs more address space than that")
        self.environ = {}
        layers = {"model": {"plugin": "lenet"}, "model.mlp": None, "model.lenet": {"classes": 4},
                  "data.synthetic": {"samples": 32, "shape": "1, 28, 28"}, "train": {"epochs": 1}}
        p = self.start("-c", self.ini("endless.ini", layers, {"train": {"epochs": 100000}, "output": {"log_every": 50}}))
        self.trained_a_while(p)
        peak = self.peak_of(p.pid) >> 20
        p.kill()
        path, codes, limit = self.ini("x.ini", layers), [], peak + 12
        while codes[-5:] != [1] * 5:  # arenas of malloc, which it can do without, may be most of the peak
            limit -= 4
            self.check(limit > 32, f"no limit was too low: {codes}")
            r = subprocess.run(["sh", "-c", f'ulimit -c 0; ulimit -v {limit << 10}; exec "$@"', "sh", str(harness.ENGINE), "-c", str(path)],
                               capture_output=True, text=True, timeout=harness.PATIENCE, check=False)
            self.check(r.returncode in (0, 1, 3), (limit, r.returncode, r.stderr))
            self.check(r.returncode == 0 or ": error: " in r.stderr or "libgomp: " in r.stderr, (limit, r.stderr))
            codes.append(r.returncode)

    # ---- data -------------------------------------------------------------------------------------------------------
    def data(self, images, labels, *parts, classes=10):
        (self.dir / "images").write_bytes(images)
        (self.dir / "labels").write_bytes(labels)
        config = {"model.mlp": {"input": "image", "classes": classes}, "data": {"plugin": "idx"}, "data.synthetic": None,
                  "data.idx": {"images": self.dir / "images", "labels": self.dir / "labels"}}
        self.fails(self.run("-c", self.ini("x.ini", config), "--nproc", 2), 10, *parts)

    def test_damaged_data(self):
        images, labels = idx(8, [8, 3, 3], bytes(72)), idx(8, [8], bytes(range(8)))
        self.data(images[:-1], labels, "images", "truncated")
        self.data(b"GIF89a" + images, labels, "images", "IDX")
        self.data(images, idx(8, [7], bytes(7)), "images", "8", "7")
        self.data(gzip.compress(images)[:-9], labels, "images")
        self.data(idx(8, [2 ** 31, 2 ** 31, 2 ** 31], b""), labels, "images")

    def test_label_out_of_range(self):
        images = idx(8, [8, 3, 3], bytes(72))
        self.data(images, idx(8, [8], bytes([0, 1, 2, 3, 4, 5, 6, 200])), "200", "label")

    def test_missing_data(self):
        config = {"model.mlp": {"input": "image"}, "data": {"plugin": "idx"}, "data.synthetic": None,
                  "data.idx": {"images": self.dir / "nowhere", "labels": self.dir / "nowhere"}}
        self.fails(self.run("-c", self.ini("x.ini", config), "--check"), 10, self.dir / "nowhere")


if __name__ == "__main__":
    sys.exit(harness.main(Errors))
