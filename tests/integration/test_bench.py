"""ddpengine bench all_reduce: the table, the document, what it refuses. No figure decides a test."""
import json
import re
import subprocess
import sys

import harness
from harness import SRC, Case

ROW = re.compile(r"^ +(\d+) +(\d+) +f32 +sum +(\S+) +" + " +".join([r"([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +(\d+)"] * 2) + " *$", re.M)


class Bench(Case):
    def test_backends_alternate_in_one_table(self):
        backends = [b for b in ("gloo-tcp", "shm") if re.search(rf"^backend +{b} ", self.run("plugins").out, re.M)]
        for extra in ((), ("--queue",)):
            r = self.run("bench", "all_reduce", "--backend", ",".join(backends), "--sizes", "4,60KiB", "--rounds", 2, *extra)
            self.equal(r.code, 0, r)
            rows = ROW.findall(r.out)
            self.equal([(int(x[0]), int(x[1]), x[2]) for x in rows],
                       [(size, size // 4, b) for size in (4, 61440) for b in backends], r)
            for x in rows:
                for at in (3, 8):  # out of place, in place
                    least, median, algbw, busbw, wrong = map(float, x[at:at + 5])
                    self.check(0 < least <= median and wrong == 0, x)
                    self.equal(algbw, busbw, x)  # 2 (n - 1) / n is 1 for two ranks
                    self.check(abs(algbw - int(x[0]) / median / 1e3) <= 0.01 + 0.01 * algbw, x)
            self.check(("work queue" in r.out) == bool(extra), r)

    def test_document(self):
        r = self.run("bench", "all_reduce", "--sizes", "1KiB", "--rounds", 1, "--nproc", 3, "--json")
        self.equal(r.code, 0, r)
        d = json.loads(r.out)
        self.equal((d["collective"], d["world_size"], d["through"], d["rounds"]), ("all_reduce", 3, "slots", 1))
        self.equal([(x["backend"], x["size"], x["count"], x["in_place"], x["wrong"]) for x in d["results"]],
                   [("gloo-tcp", 1024, 256, False, 0), ("gloo-tcp", 1024, 256, True, 0)])
        for x in d["results"]:
            self.check(x["iterations"] >= 1 and 0 < x["min_us"] <= x["time_us"], x)
            self.check(abs(x["busbw_gbps"] - x["algbw_gbps"] * 4 / 3) < 1e-3 * x["busbw_gbps"], x)

    def test_wrong_values_are_counted(self):
        out = self.dir / "backend_faulty.so"
        subprocess.run(["cc", "-std=gnu11", "-fPIC", "-fvisibility=hidden", "-shared", "-DBREAK=1", '-DNAME="faulty"',
                        f"-I{SRC}/core/include", f"-I{SRC}/docs/examples/backend-skeleton",
                        str(SRC / "tests/fixtures/plugins/broken_backend.c"), "-o", str(out), "-lpthread"], check=True)
        r = self.run("bench", "all_reduce", "--backend", out, "--sizes", "4,12", "--rounds", 1)
        self.fails(r, 3, "faulty", "wrong values")
        self.equal([(x[0], x[7], x[12]) for x in ROW.findall(r.out)], [("4", "0", "0"), ("12", "1", "1")], r)

    def test_usage(self):
        for args, part in (((), "all_reduce"), (("all_gather",), "all_gather"), (("all_reduce", "--sizes", "3"), "multiples of 4"),
                           (("all_reduce", "--sizes", "1KB"), "1KB"), (("all_reduce", "--sizes", ""), "--sizes"),
                           (("all_reduce", "--nproc", "9"), "1 to 8"), (("all_reduce", "--rounds", "0"), "--rounds"),
                           (("all_reduce", "--backend", "init.tcp"), "not a backend"), (("all_reduce", "--nonsense"), "--nonsense")):
            self.fails(self.run("bench", *args), 2, part)
        self.fails(self.run("bench", "all_reduce", "--backend", "nonsense"), 3, "nonsense")
        with open("/dev/full", "w") as full:
            r = subprocess.run([harness.ENGINE, "bench", "all_reduce", "--sizes", "4", "--rounds", "1"], stdout=full,
                               stderr=subprocess.PIPE, text=True, cwd=self.dir)
        self.equal(r.returncode, 1, r)
        self.check("cannot write to standard output" in r.stderr, r)


if __name__ == "__main__":
    sys.exit(harness.main(Bench))
