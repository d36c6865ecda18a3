"""ddpengine --profile: the table of where the time of the steps goes, and profile.json."""
import json
import shutil
import sys

import harness
from harness import Case, Skip, long_case, seldom

HEAD = ["kernel", "calls", "ms/step", "share", "%", "GFLOP/s", "GB/s", "%", "of", "peak", "limit"]


def number(text):
    return None if text == "-" else float(text)


class Profile(Case):
    def table(self, r):
        """{name: (calls, ms, share, gflops, gbytes, percent, limit)} of what rank 0 printed, in order, and the line above it."""
        lines = r.err.splitlines()
        heads = [i for i, line in enumerate(lines) if line.split() == HEAD]
        self.equal(len(heads), 1, r)  # one rank alone prints
        at = heads[0]
        rows = {}
        for line in lines[at + 1:]:
            name, *cells, limit = line.split()
            self.equal(len(cells), 6, line)
            self.check(name not in rows, f"twice: {line}")
            rows[name] = (*map(number, cells), limit)
            if name == "total":
                break
        return rows, lines[at - 1]

    def profile(self, *layers, **named):
        r = self.train(*layers, args=["--profile", *named.pop("args", ())], **named)
        return r, *self.table(r), json.loads((r.dir / "profile.json").read_text())

    def test_two_ranks(self):
        r, rows, above, whole = self.profile()
        total = rows.pop("total")
        self.check("profile of rank 0: 37 steps counted, the first 3 left out; peaks measured with 1 thread: " in above, above)
        self.check({"linear+bias+relu", "linear_grad_weight", "update", "wait", "data", "other"} <= set(rows), rows)
        self.equal(rows["linear+bias+relu"][0], 2)  # two hidden layers
        self.equal(list(rows), sorted(rows, key=lambda name: -rows[name][1]), rows)
        self.check(abs(sum(row[2] for row in rows.values()) - 100) <= 1, rows)
        self.check(abs(sum(row[1] for row in rows.values()) - total[1]) <= 0.01 * total[1], (rows, total))
        self.equal(total[2], 100)
        for name, (calls, ms, _, gflops, gbytes, percent, limit) in rows.items():
            self.check(calls >= 1 and ms >= 0, name)
            self.check((percent is None) == (limit == "-") and limit in ("-", "compute", "memory"), name)
            self.check(percent is None or percent > 0, (name, percent))
            if name.startswith("linear"):  # others may find all they read in a cache, which is faster than memory
                self.check(gflops > 0 and gbytes > 0 and percent < 150, (name, percent))
        self.check(0 < total[5] < 150, total)
        self.check(rows["update"][3] is None and rows["update"][6] == "memory", rows)
        self.file_says({**rows, "total": total}, whole)

    def file_says(self, rows, whole):
        """What the table says."""
        self.equal((whole["steps"], whole["left_out"], whole["world_size"], whole["threads"], whole["precision"]),
                   (37, 3, 2, 1, "f32"))
        self.check(whole["peak_gflops"] > 0.1 and whole["peak_gbytes_per_s"] > 0.1, whole)
        self.equal([row["name"] for row in whole["rows"]] + ["total"], list(rows))
        for row in [*whole["rows"], whole["total"]]:
            self.check(row["calls"] > 0 and row["ms"] > 0, row)
            columns = (row["calls"], row["ms"], row["share"], row["gflops"], row["gbytes_per_s"], row["percent_of_peak"])
            for a, b in zip(columns, rows[row["name"]], strict=False):
                self.check((a is None) == (b is None) and (a is None or abs(a - b) <= 0.0501), (row, rows[row["name"]]))
            self.equal(row["limit"] or "-", rows[row["name"]][6])
            if row["percent_of_peak"] is not None:
                of_peak = {"compute": (row["gflops"] or 0) / whole["peak_gflops"],
                           "memory": (row["gbytes_per_s"] or 0) / whole["peak_gbytes_per_s"]}
                self.equal(row["limit"], max(of_peak, key=of_peak.get), row)
                self.check(abs(row["percent_of_peak"] - 100 * of_peak[row["limit"]]) < 1e-3, (row, of_peak))
        (first,) = [row for row in whole["rows"] if row["name"] == "linear+bias"]
        flops = first["gflops"] * first["ms"] * 1e6  # a batch of 16 through 17 -> 4: products, sums, and the bias
        self.check(2 * 16 * 17 * 4 <= flops * 1.0001 and flops <= 2 * 16 * 17 * 4 + 16 * 4.001, flops)

    @seldom
    def test_changes_no_bits(self):
        small = {"ddp": {"bucket_size": "1KiB", "first_bucket_size": "1KiB"}, "train": {"max_steps": 12}}
        for name, layer in (("shards", {}), ("overlap", {"ddp": {"overlap": "yes"}}),
                            ("gloo", {"group": {"backend": "gloo-tcp"}, "train": {"accumulate": 2}})):
            plain = self.train(small, layer, name=f"{name}.ini")
            self.check("kernel " not in plain.err and not (plain.dir / "profile.json").exists(), plain)
            r, rows, _, _ = self.profile(small, layer, name=f"{name}-profile.ini")
            self.equal(r.summary["parameter_sha256"], plain.summary["parameter_sha256"], name)
            self.check(rows["update"][0] > 1, (name, rows))  # a call for each bucket
            self.equal(rows["data"][0], 2 if name == "gloo" else 1, name)

    @seldom
    def test_few_steps_and_an_odd_batch(self):
        _, rows, above, whole = self.profile({"train": {"max_steps": 3}}, name="three.ini")
        self.check("profile of rank 0: 3 steps counted; peaks" in above, above)
        self.equal((whole["steps"], whole["left_out"]), (3, 0))
        _, rows, above, _ = self.profile({"train": {"max_steps": 4}}, name="four.ini")
        self.check("profile of rank 0: 1 step counted, the first 3 left out; peaks" in above, above)
        # 50 samples: three batches of 16 and one of 2 an epoch, in two programs
        _, rows, _, whole = self.profile({"data.synthetic": {"samples": 50}}, nproc=0, name="odd.ini")
        self.equal((whole["world_size"], whole["steps"]), (1, 5))
        self.equal(rows["linear+bias+relu"][0], 2)

    def test_no_folder_and_bf16(self):
        r = self.run("-c", self.ini("x.ini"), "--profile", "--set", "train.precision=bf16")
        self.equal(r.code, 0, r)
        self.check("linear+bias+relu" in self.table(r)[0], r)
        self.equal(sorted(p.name for p in self.dir.iterdir()), ["x.ini"])

    @long_case
    def test_backend_with_a_launcher_of_its_own(self):
        if not shutil.which("mpirun") or not (harness.BUILD / ".libs/backend_mpi.so").exists():
            raise Skip("no backend mpi")
        _, rows, _, whole = self.profile({"group": {"backend": "mpi"}, "train": {"max_steps": 4}}, env=harness.MPI_LEAKS)
        self.equal((whole["world_size"], rows["update"][0]), (2, 1))

    def test_belongs_to_training(self):
        path = self.ini("x.ini", {"output": {"dir": self.dir / "out"}})
        for other, args in (("--check", ["-c", path, "--check"]), ("--print-config", ["-c", path, "--print-config"]),
                            ("eval", ["eval", "-c", path]), ("generate", ["generate", "-c", path]), ("plugins", ["plugins"])):
            self.fails(self.run(*args, "--profile"), 2, "--profile measures the steps of a training", f"leave out {other};")
        self.equal(sorted(p.name for p in self.dir.iterdir()), ["x.ini"])


if __name__ == "__main__":
    sys.exit(harness.main(Profile))
