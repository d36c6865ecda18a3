"""Starts a script of ours once for each rank, as its users' torchrun would: `--rank R --port P` behind its own arguments."""
import os
import socket
import subprocess
import sys


def start(script, world, env=None):
    """Waits for all; the largest exit code."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    ranks = [subprocess.Popen([sys.executable, script, *sys.argv[1:], "--rank", str(r), "--port", str(port)], env={**os.environ, **(env or {})})
             for r in range(world)]
    return max(p.wait() for p in ranks)
