"""Ranks that differ, that never come, that die: everyone leaves in time, with the documented code and the first cause."""
import os
import re
import resource
import signal
import sys
import threading
import time

import harness
from harness import Case, children_of, long_case, until

LONG = {"train": {"epochs": 100000}, "output": {"log_every": 50}}


class Group(Case):
    def pair(self, second, first=None, world=2):
        """Two nodes with an INI each; `second` is what node 2 has differently."""
        port = harness.free_port()
        group = {"group": {"init_method": f"tcp://127.0.0.1:{port}", "world_size": world, "rendezvous_timeout": "20s"}}
        a = self.ini("node1.ini", group, {"group": {"rank": 0}}, first or {})
        b = self.ini("node2.ini", group, {"group": {"rank": 1}}, second)
        p, q = self.start("-c", a), self.start("-c", b)
        return self.finish(p), self.finish(q)

    def differ(self, second, key, left, right):
        for r in self.pair(second):
            self.fails(r, 4, key, left, right, "node1.ini:", "node2.ini:")

    def test_differing_learning_rate(self):
        self.differ({"optimizer": {"lr": 0.06}}, "optimizer.lr", "0.05", "0.06")

    def test_differing_batch_size(self):
        self.differ({"train": {"batch_size": 8}}, "train.batch_size", "16", "8")

    def test_differing_model(self):
        self.differ({"model.mlp": {"hidden": "24, 18"}}, "model.mlp.hidden", "24, 17", "24, 18")

    def test_differing_dataset(self):
        self.differ({"data.synthetic": {"samples": 600}}, "data.synthetic.samples", "640", "600")

    def test_sampler_with_unlike_counts(self):
        # 129 samples: 65 are 3 micro-batches, 64 are 2; both would be one step of up to 4
        uneven = {"data.synthetic": {"samples": 129}, "train": {"batch_size": 32, "accumulate": 4},
                  "sampler": {"plugin": "sequential"}}
        for r in self.pair(uneven, uneven):
            self.fails(r, 2, "rank 0 3 batches", "rank 1 2", "sequential", "plugin = distributed")
        self.fails(self.run("-c", self.ini("x.ini", uneven), "--check", "--nproc", 2), 2, "rank 0 3 batches", "rank 1 2")

    def test_fewer_samples_than_ranks_is_seen_by_all(self):
        one = {"data.synthetic": {"samples": 1}, "sampler": {"plugin": "sequential"}}
        for r in self.pair(one, one):
            self.fails(r, 2, "rank 1 gets no samples")

    def test_differing_world_size(self):
        for r in self.pair({"group": {"world_size": 3}}):
            self.fails(r, 4, "world_size", "2 (", "3 (", "node1.ini:", "node2.ini:")

    def test_same_rank_twice(self):
        group = {"group": {"init_method": f"tcp://127.0.0.1:{harness.free_port()}", "world_size": 4, "rendezvous_timeout": "20s"}}
        ranks = [self.start("-c", self.ini(f"{i}.ini", group, {"group": {"rank": rank}})) for i, rank in enumerate((0, 1, 1))]
        for r in [self.finish(p) for p in ranks]:
            self.fails(r, 4, "rank 1 is already taken")

    def test_rank_out_of_range(self):
        r = self.run("-c", self.ini("x.ini", {"group": {"rank": 5, "world_size": 2, "init_method": "tcp://127.0.0.1:29999"}}))
        self.fails(r, 2, "rank", "world_size")

    def test_world_size_is_not_guessed(self):
        """A rank 0 that knows an address but no number of ranks would train alone."""
        address = f"tcp://127.0.0.1:{harness.free_port()}"
        r = self.run("-c", self.ini("x.ini", {"group": {"init_method": address}}))
        self.fails(r, 2, "x.ini:", "init_method", "world_size")
        self.fails(self.run("-c", self.ini("y.ini", {"group": {"rank": 1}})), 2, "y.ini:", "rank = 1", "world_size")

    def test_missing_rank_is_named_and_times_out(self):
        group = {"group": {"init_method": f"tcp://127.0.0.1:{harness.free_port()}", "world_size": 3, "rank": 0,
                           "rendezvous_timeout": "6s"}}
        r = self.run("-c", self.ini("x.ini", group))
        self.fails(r, 4, "1", "2")
        self.check(re.search(r"waiting.*1.*2", r.err), r)

    def test_port_in_use(self):
        import socket
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            port = s.getsockname()[1]
            r = self.run("-c", self.ini("x.ini", {"group": {"init_method": f"tcp://127.0.0.1:{port}", "world_size": 2,
                                                            "rank": 0, "rendezvous_timeout": "5s"}}))
        self.fails(r, 4, str(port), "in use")

    def test_no_encryption_needs_consent(self):
        r = self.run("-c", self.ini("x.ini", {"group": {"init_method": "tcp://192.0.2.1:29500", "world_size": 2, "rank": 0}}))
        self.fails(r, 2, "192.0.2.1", "auth = none")

    # ---- a rank dies ----------------------------------------------------------------------------------------------
    def test_killed_rank_of_two_nodes(self):
        group = {"group": {"init_method": f"tcp://127.0.0.1:{harness.free_port()}", "world_size": 2}}
        for victim in (0, 1):
            p = [self.start("-c", self.ini(f"{r}.ini", group, LONG, {"group": {"rank": r}})) for r in (0, 1)]
            self.trained_a_while(p[0])
            p[victim].kill()
            r = self.finish(p[1 - victim])
            self.fails(r, 5, f"rank {victim}")
            p[victim].wait()

    def test_killed_child_ends_the_family(self):
        path = self.ini("family.ini", LONG)
        for nproc, victim in ((2, 1), (3, 0)):
            p = self.start("-c", path, "--nproc", nproc)
            self.trained_a_while(p)
            kids = children_of(p.pid)
            self.equal(len(kids), nproc)
            os.kill(kids[victim], signal.SIGKILL)
            r = self.finish(p)
            self.fails(r, 5, f"rank {victim} (pid {kids[victim]})", "killed by signal 9")
            self.no_processes_left(path)

    def test_killed_supervisor_leaves_no_orphan(self):
        path = self.ini("orphan.ini", LONG)
        p = self.start("-c", path, "--nproc", 2)
        self.trained_a_while(p)
        p.kill()
        p.wait()
        self.no_processes_left(path)

    def test_terminated_supervisor_ends_its_ranks(self):
        path = self.ini("term.ini", LONG)
        p = self.start("-c", path, "--nproc", 2)
        self.trained_a_while(p)
        p.terminate()
        r = self.finish(p)
        self.fails(r, 128 + 15, "ended by signal 15")
        self.no_processes_left(path)

    def test_terminated_rank_without_a_supervisor(self):
        p = self.start("-c", self.ini("one.ini", LONG))
        self.trained_a_while(p)
        p.terminate()
        self.fails(self.finish(p), 128 + 15, "ended by signal 15", "after step")

    def test_signals_that_are_to_be_ignored(self):
        """nohup: the run outlives its terminal. SIGCHLD ignored: the ranks' ends are seen all the same."""
        path = self.ini("nohup.ini", LONG)
        for nproc in ((), ("--nproc", 2)):
            p = self.start("-c", path, *nproc, ignore=signal.SIGHUP)
            self.trained_a_while(p)
            p.send_signal(signal.SIGHUP)
            for _ in range(3):
                self.trained_a_while(p)
            self.equal(p.poll(), None)
            p.terminate()
            self.check(self.finish(p).code in (-15, 128 + 15))
            self.no_processes_left(path)
        r = self.finish(self.start("-c", self.ini("short.ini"), "--nproc", 2, ignore=signal.SIGCHLD), timeout=harness.PATIENCE)
        self.equal(r.code, 0, r)

    # ---- a rank stands still -----------------------------------------------------------------------------------------
    def test_stopped_rank_is_a_time_out(self):
        for victim in (0, 1):
            group = {"group": {"init_method": f"tcp://127.0.0.1:{harness.free_port()}", "world_size": 2,
                               "step_timeout": "1s"}}
            p = [self.start("-c", self.ini(f"{r}.ini", group, LONG, {"group": {"rank": r}})) for r in (0, 1)]
            self.trained_a_while(p[0])
            p[victim].send_signal(signal.SIGSTOP)
            r = self.finish(p[1 - victim])
            p[victim].send_signal(signal.SIGCONT)
            self.finish(p[victim])
            self.fails(r, 6, f"on rank {1 - victim}", "all_reduce", "step_timeout")
            self.check(p[victim].returncode in (5, 6), p[victim].returncode)

    def silent(self, victim, group):
        """Two nodes in training, one of them stopped; returns what both say in the end."""
        where = {"init_method": f"tcp://127.0.0.1:{harness.free_port()}", "world_size": 2, **group}
        p = [self.start("-c", self.ini(f"{r}.ini", {"group": where}, LONG, {"group": {"rank": r}})) for r in (0, 1)]
        self.trained_a_while(p[0])
        p[victim].send_signal(signal.SIGSTOP)
        r = self.finish(p[1 - victim])
        p[victim].send_signal(signal.SIGCONT)
        return r, self.finish(p[victim])

    def test_silent_rank_ends_the_run(self):
        """No plugin notices that a peer was stopped; it leaves by itself once it wakes."""
        for victim in (0, 1):
            r, woken = self.silent(victim, {"peer_timeout": "2s"})
            for one in (r, woken):
                self.fails(one, 6, f"rank {victim} on host ", "has been silent for 2 s (peer_timeout) at step ")
            self.check("did not run for" in woken.err, woken)

    def test_silent_child_ends_the_family(self):
        path = self.ini("family.ini", LONG, {"group": {"peer_timeout": "2s"}})
        for nproc, victim in ((2, 0), (3, 2)):
            p = self.start("-c", path, "--nproc", nproc)
            self.trained_a_while(p)
            os.kill(children_of(p.pid)[victim], signal.SIGSTOP)
            r = self.finish(p)
            self.fails(r, 6, f"rank {victim} on host ", "silent for 2 s (peer_timeout)")
            self.no_processes_left(path)

    def test_pause_is_survived(self):
        path = self.ini("pause.ini", LONG, {"group": {"peer_timeout": "30s"}})
        p = self.start("-c", path, "--nproc", 2)
        self.trained_a_while(p)
        for kid in children_of(p.pid):
            self.stand_still(kid)
            time.sleep(0.5)  # as long as the others wait for it
            os.kill(kid, signal.SIGCONT)
            for _ in range(3):
                self.trained_a_while(p)
        self.equal(p.poll(), None)
        p.terminate()
        self.equal(self.finish(p).code, 128 + 15)

    @long_case
    def test_straggler_is_named(self):
        """A rank that gets half of the time only, as on a busier machine; most of its step is computing, so that it is held back there."""
        group = {"group": {"init_method": f"tcp://127.0.0.1:{harness.free_port()}", "world_size": 2}}
        self.environ = {}
        work = {"model.mlp": {"hidden": "600, 600"}, "data.synthetic": {"shape": 200, "samples": 4000},
                "train": {"batch_size": 200}}
        p = [self.start("-c", self.ini(f"{r}.ini", group, LONG, work, {"group": {"rank": r}, "output": {"dir": self.dir / f"o{r}"}}))
             for r in (0, 1)]
        self.trained_a_while(p[0])
        done, lines = threading.Event(), []

        def hold_back():
            while not done.is_set():
                p[1].send_signal(signal.SIGSTOP)
                time.sleep(0.02)
                p[1].send_signal(signal.SIGCONT)
                time.sleep(0.02)

        holder = threading.Thread(target=hold_back)
        holder.start()
        try:
            until(lambda: lines.append(p[0].stderr.readline()) or "straggler" in lines[-1], lambda: lines)
        finally:
            done.set()
            holder.join()
        for q in p:
            q.terminate()
        for q in p:
            self.finish(q)
        self.check(re.search(r"warning: rank 1 on host \S+ is the straggler: it computes [0-9.]+ ms and waits for data", lines[-1]),
                   lines)
        warnings = self.metrics(self.dir / "o0", "warning")
        self.equal(len(warnings), 1)
        self.check("rank 1 on host" in warnings[0]["text"], warnings)

    # ---- many ranks -------------------------------------------------------------------------------------------------
    @long_case
    def test_1024_ranks(self):
        """Processes of the control plane alone: they join, agree, gather, name one that is killed (a leaf, then a hub), and leave."""
        few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))  # as is usual
        for victim in (33, 64):
            r = self.finish(self.spawn(preexec_fn=few, argv=[harness.BUILD / "tests/bench/hosts/bench_control", "--ranks", 1024, "--hub", 32, "--secret", "--kill", victim]))
            self.equal(r.code, 0, r)
            self.check(f"rank {victim} killed: named by all others" in r.out and "1023 " not in r.out, r)

    # ---- not finite -------------------------------------------------------------------------------------------------
    def test_diverging_run_names_rank_tensor_and_step(self):
        r = self.run("-c", self.ini("x.ini", {"optimizer": {"lr": 1e30}}), "--nproc", 2)
        self.fails(r, 7, "not finite", "rank ", "step ", re.compile("loss|gradient of fc"))


if __name__ == "__main__":
    sys.exit(harness.main(Group))
