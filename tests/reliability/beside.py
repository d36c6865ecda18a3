"""torchrun --nnodes=1:2 --max-restarts=3 beside restart.py: a model of the same size and batch, a checkpoint every 100 steps, two
agents, as on two hosts, with as many workers in all, of which a random one is killed or stopped. torchrun does not see that a worker stands still: it waits for torch's own time-out, which for gloo
is 30 minutes, or for ever; so a trial ends after --torch-patience.

TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 gives it its best: with torch 2.15 as it is, workers that are started again mostly cannot connect
("Gloo connectFullMesh failed ... Connection refused"), until --max-restarts is used up or they hang. Debian 12's torchrun 1.13 does not
start with its Python 3.11."""
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

from survive import RANKS, Trial, harness, processes, strike, text

FIRST, LAST = 150, 1000  # the step at which a worker is lost


class Workers(Trial):
    """A run of torchrun, whose standard output is read line by line; gloo writes there as well, in the middle of them too."""

    def begin(self, python):
        """The agents."""
        script = pathlib.Path(__file__).with_name("torch_elastic.py")
        port = harness.free_port()
        for workers in (RANKS - 1, 1):
            p = subprocess.Popen([python, "-m", "torch.distributed.run", "--nnodes=1:2", f"--nproc_per_node={workers}",
                                  "--max_restarts=3", "--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{port}", "--rdzv_id=beside",
                                  str(script), str(self.dir)],
                                 stdout=subprocess.PIPE, stderr=open(self.dir / "errors", "a"), text=True, cwd=self.dir,
                                 env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
                                      "TMPDIR": str(self.dir)})
            self.started.append(p)
            self.readers.append(threading.Thread(target=self.read, args=(p,), daemon=True))
            self.readers[-1].start()
        return self.started

    def read(self, p):
        for line in p.stdout:
            self.lines.append((time.monotonic(), line))

    def ended(self):
        """The agents' exit codes, where all have ended."""
        codes = [p.poll() for p in self.started]
        return None if None in codes else codes

    def pids(self):
        """Of rank 0 .. RANKS - 1, as they were started last."""
        return dict(m.groups() for _, line in list(self.lines) if (m := re.search(r"rank (\d+) pid (\d+)", line)))

    def steps(self, since=0.0):
        return [(t, int(m[1]), int(m[2])) for t, line in list(self.lines)
                if t >= since and (m := re.search(r"step (\d+) of (\d+)", line))]

    def reason(self):
        """The last error that a worker has told."""
        told = re.findall(r"\w+Error: \S.*", (self.dir / "errors").read_text(errors="replace"))
        return told[-1][:100] if told else "no reason"

    def close(self):
        for p in self.started:
            p.kill()
        strike(processes(self.dir), signal.SIGKILL)  # the workers, which do not end with torchrun
        super().close()


def one(python, fault, rng, patience):
    """(seconds from the fault to the first new step, steps made again), or what happened instead."""
    t = Workers()
    try:
        at = rng.randrange(FIRST, LAST)
        t.begin(python)
        harness.until(lambda: t.ended() or len(t.pids()) >= RANKS and any(n >= at for _, n, _ in t.steps()), "torchrun does not train")
        if t.ended():
            return f"exit {t.ended()} before the fault: {t.reason()}"
        struck, (_, done, before) = time.monotonic(), t.steps()[-1]
        os.kill(int(t.pids()[str(rng.randrange(RANKS))]), signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
        while not t.ended() and time.monotonic() < struck + patience:
            new = [s for s in t.steps(struck) if s[2] != before]
            if new:
                return new[0][0] - struck, max(0, done - new[0][1] + 1)
            time.sleep(0.01)
        return f"exit {t.ended()}: {t.reason()}" if t.ended() else "hung"
    finally:
        t.close()


def row(python, fault, trials, rng, patience):
    version = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=True)
    results = [one(python, fault, rng, patience) for _ in range(trials)]
    good = [r for r in results if isinstance(r, tuple)]
    other = sorted({r for r in results if isinstance(r, str)})
    print(f"torchrun {version.stdout.strip()}  {fault:5} {len(good):3} of {trials:3}   first new step after "
          f"{text([s for s, _ in good], '%.2f')} s, from the fault   steps again {text([n for _, n in good], '%d')}"
          f"{'   others: ' + ', '.join(other) + f' (for {patience:g} s)' if other else ''}", flush=True)
