"""Backend aggregate and `ddpengine aggregate`: hosts that sum for the ranks. All are processes of this host."""
import json
import os
import pathlib
import re
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import Case, seldom  # noqa: E402

RUN = {"train": {"epochs": 1, "batch_size": 8, "check_replicas_every": 5}, "ddp": {"first_bucket_size": "1KiB", "bucket_size": "32KiB"},
       "model.mlp": {"hidden": "100, 60"}, "output": {"log_every": 10}, "backend.aggregate": {"chunk": "4KiB", "small": "1KiB"}}
FOR_EVER = {"train": {"epochs": 100000}}


class Aggregate(Case):
    def files(self, name, world, aggregators, *layers, backend="aggregate"):
        """The INI of each rank, and that of the aggregators."""
        port = harness.free_port()
        group = {"backend": backend, "init_method": f"tcp://127.0.0.1:{port}", "world_size": world}
        more = {"backend.aggregate": {"aggregators": aggregators}}
        ranks = [self.ini(f"{name}{r}.ini", RUN, {"group": {**group, "rank": r}, "output": {"dir": self.dir / name if r == 0 else None}}, more, *layers)
                 for r in range(world)]
        return ranks, self.ini(f"{name}-aggregate.ini", RUN, {"group": group}, more, *layers)

    def begin(self, name, world, aggregators, *layers, backend="aggregate"):
        ranks, other = self.files(name, world, aggregators, *layers, backend=backend)
        helpers = [self.start("aggregate", "-c", other) for _ in range(aggregators)] if backend == "aggregate" else []
        return [self.start("-c", path) for path in ranks], helpers

    def ended(self, name, world, aggregators, *layers, backend="aggregate"):
        """What all have said, and rank 0's summary."""
        ranks, helpers = self.begin(name, world, aggregators, *layers, backend=backend)
        results = [self.finish(p) for p in (*ranks, *helpers)]
        for r in results:
            self.equal(r.code, 0, r)
        return results, json.loads((self.dir / name / "summary.json").read_text())

    def test_trains_as_others_do(self):
        """The bits of gloo-tcp, which sums in the order of ranks too; the same when it is repeated."""
        said, first = self.ended("a", 3, 2)
        for line in (r"of 3 workers and 2 aggregators each worker sums 9\.1 % of a buffer, each aggregator 36\.4 %: 1\.22x an all-reduce without aggregators",):
            self.check(re.search(line, said[0].err), said[0])
        for r in said[3:]:
            self.check(re.search(r"this is aggregator [01] of 2 for 3 ranks", r.err) and re.search(r"aggregator [01]: [1-9]\d* all-reduces, [\d.]+ MB of sums", r.err)
                       and "the run has ended" in r.err, r)
        self.check("nothing to do" not in said[0].err, said[0])
        _, again = self.ended("b", 3, 2)
        self.equal(again["parameter_sha256"], first["parameter_sha256"])
        _, other = self.ended("c", 3, 0, backend="gloo-tcp")
        self.equal((other["backend"], other["parameter_sha256"]), ("gloo-tcp", first["parameter_sha256"]))

    def test_helpers_that_are_idle(self):
        said, _ = self.ended("a", 2, 1, {"ddp": {"zero": 1}})
        self.equal([r.err.count("they have nothing to do; leave out zero") for r in said], [1, 0, 0], said[0])

    def test_two_ranks_gain_nothing(self):
        said, summary = self.ended("a", 2, 1)
        self.check("2 workers gain nothing from 1 aggregator, " in said[0].err, said[0])
        self.equal(summary["backend"], "aggregate")
        check = self.run("aggregate", "-c", self.files("x", 2, 3)[1], "--check")
        self.equal(check.code, 0, check)
        self.check("none: 2 ranks are as fast alone" in check.out, check)
        check = self.run("aggregate", "-c", self.files("x", 4, 4)[1], "--check")
        self.check("1.50x" in check.out and "number of hosts" not in check.out, check)
        check = self.run("aggregate", "-c", self.files("x", 4, 4, {"group": {"backend": "shm+aggregate"}})[1], "--check")
        self.check("1.50x" in check.out and "it is the number of hosts that counts" in check.out, check)

    def test_an_aggregator_that_dies_is_named_by_all(self):
        ranks, helpers = self.begin("a", 3, 2, FOR_EVER)
        self.trained_a_while(ranks[0])
        os.kill(helpers[0].pid, signal.SIGKILL)
        for p in ranks:
            self.fails(self.finish(p), 5, re.compile(r"aggregator [01] on host "))
        self.fails(self.finish(helpers[1]), 5, re.compile(r"aggregator [01] on host "))

    def test_an_aggregator_that_stops_is_named_by_all(self):
        ranks, helpers = self.begin("a", 2, 1, FOR_EVER, {"group": {"peer_timeout": "1s"}})
        self.trained_a_while(ranks[0])
        self.stand_still(helpers[0].pid)
        for p in ranks:
            self.fails(self.finish(p), 6, "aggregator 0 on host ", "silent for 1 s")

    def test_an_aggregator_that_is_asked_to_end_says_so(self):
        ranks, helpers = self.begin("a", 2, 1, FOR_EVER)
        self.trained_a_while(ranks[0])
        self.signal(helpers[0].pid, signal.SIGTERM)
        for p in ranks:
            self.fails(self.finish(p), 5, "aggregator 0 on host ", "was ended by signal 15")
        self.fails(self.finish(helpers[0]), 143, "was ended by signal 15")

    def test_a_rank_that_dies_ends_the_aggregator(self):
        ranks, helpers = self.begin("a", 3, 1, FOR_EVER)
        self.trained_a_while(ranks[0])
        os.kill(ranks[2].pid, signal.SIGKILL)
        for p in (ranks[0], ranks[1], helpers[0]):
            self.fails(self.finish(p), 5, "rank 2")

    def test_a_missing_aggregator_is_named(self):
        ranks, other = self.files("a", 2, 2, {"group": {"rendezvous_timeout": "1s"}})
        helper = self.start("aggregate", "-c", other)
        for p in [self.start("-c", path) for path in ranks]:
            self.fails(self.finish(p), 4, "aggregator 1 of 2 did not come within 1 s", "ddpengine aggregate")
        self.equal(self.finish(helper).code, 4)
        self.fails(self.run("aggregate", "-c", other), 4, "rank 0 was not found", "within 1 s")

    def test_one_too_many(self):
        ranks, other = self.files("a", 2, 1, FOR_EVER)
        helpers = [self.start("aggregate", "-c", other)]
        started = [self.start("-c", path) for path in ranks]
        self.trained_a_while(started[0])
        helpers.append(self.start("aggregate", "-c", other))
        self.fails(self.finish(helpers[1]), 2, "this is aggregator 1", "aggregators")
        self.trained_a_while(started[0])
        self.equal([p.poll() for p in (*started, helpers[0])], [None] * 3)

    def test_who_may_help(self):
        """Another secret, other settings, nothing to help."""
        for name, text in (("right", "00" * 32), ("wrong", "11" * 32)):
            (self.dir / name).write_text(text + "\n")
            (self.dir / name).chmod(0o600)
        ranks, other = self.files("a", 2, 1, FOR_EVER, {"group": {"secret_file": self.dir / "right"}})
        wrong = ["--set", f"group.secret_file={self.dir / 'wrong'}"]
        started = [self.start("-c", path) for path in ranks]
        self.fails(self.run("aggregate", "-c", other, *wrong), 4, "differ in their secret")
        self.fails(self.run("aggregate", "-c", other, "--set", "backend.aggregate.chunk=8KiB"), 4,
                   "rank 0 and an aggregator differ in backend.aggregate.chunk: 4KiB", "8KiB")
        helper = self.start("aggregate", "-c", other)
        self.trained_a_while(started[0])
        self.equal(helper.poll(), None)

        def refused(*parts, **group):
            sets = [word for k, v in group.items() for word in ("--set", f"group.{k}={v}")]
            self.fails(self.run("aggregate", "-c", other, *sets), 2, *parts)
        refused("takes no help from other hosts", "backend = aggregate", backend="gloo-tcp")
        refused("must know where rank 0 is", init_method="")
        refused("192.0.2.1:29500 is not at a loopback address", "auth = none", init_method="tcp://192.0.2.1:29500", secret_file="")
        refused("how many ranks there are", world_size=0)
        self.fails(self.run("aggregate", "-c", other, "--set", "backend.aggregate.aggregators=0"), 2, "wants no aggregators")
        self.fails(self.run("aggregate"), 2, "no config file")

    @seldom
    def test_advice(self):
        for world, says in ((2, r"^aggregators +1, no gain: 2 ranks are as fast alone$"), (3, r"^aggregators +1: 1\.11x an all-reduce of 3 ranks alone, in theory$")):
            ranks, other = self.files("a", world, 1)
            helper = self.start("aggregate", "-c", other)
            results = [self.finish(p) for p in [self.start("advise", "-c", path, "--steps", 3) for path in ranks]]
            self.equal([r.code for r in results], [0] * world, results)
            self.check(re.search(says, results[0].out, re.M), results[0])
            self.equal(self.finish(helper).code, 0)


if __name__ == "__main__":
    sys.exit(harness.main(Aggregate))
