"""What anyone who reaches rank 0's port can do to it without the secret. Each attack returns when it has done its worst, and
leaves open what it means to leave open in `held`."""
import contextlib
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import time

WIRE = pathlib.Path(__file__).resolve().parents[2] / "core/net/wire.h"
MAGIC, HELLO = 0x47504444, 1
VERSION = int(re.search(r"^#define DDP_WIRE_VERSION (\d+)u", WIRE.read_text(), re.M).group(1))


class Attacker:
    def __init__(self, endpoint, rng, scale=1.0):
        host, port = endpoint.rsplit(":", 1)
        self.address, self.rng, self.scale = (host, int(port)), rng, scale
        self.held, self.refused, self.made = [], 0, 0

    def close(self):
        for s in self.held:
            s.close()
        self.held = []

    def connect(self):
        """A connection, or None when there is none to be had at once: that is a good answer too."""
        s = socket.socket()
        s.settimeout(2)
        try:
            s.connect(self.address)
        except OSError:
            s.close()
            self.refused += 1
            return None
        self.made += 1
        return s

    def send(self, data, count, hold=False):
        for _ in range(max(1, int(count * self.scale))):
            s = self.connect()
            if s is None:
                continue
            with contextlib.suppress(OSError):
                s.sendall(data() if callable(data) else data)
            if hold:
                self.held.append(s)
            else:
                s.close()

    # ---- the attacks ----------------------------------------------------------------------------------------------
    def connects(self):
        """10,000, of which the last 100 stay open."""
        recent = []
        for _ in range(int(10000 * self.scale)):
            s = self.connect()
            if s is not None:
                recent.append(s)
            if len(recent) > 100:
                recent.pop(0).close()
        self.held += recent

    def silence(self):
        self.send(b"", 200, hold=True)

    def random_bytes(self):
        self.send(lambda: self.rng.randbytes(self.rng.randrange(1, 20000)), 200)

    def http(self):
        self.send(b"GET / HTTP/1.1\r\nHost: example.org\r\nUser-Agent: curl/8\r\n\r\n", 50)
        self.send(b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 50000, 20, hold=True)

    def lengths(self):
        """Of 2^64-1, of all that a header can say, of all that a hello may have but never comes; a hello cut short."""
        self.send(b"\xff" * 64, 50)
        for length in (0xffffffff, 0x7fffffff, 64 << 10, (64 << 10) + 1):
            header = struct.pack("<IHHII", MAGIC, VERSION, HELLO, length, 0)
            self.send(header + b"\xff" * 1000, 50, hold=True)
        flood = struct.pack("<IHHII", MAGIC, VERSION, HELLO, 512 << 20, 0) + b"\0" * (64 << 20)
        self.send(flood, 1)  # as much of it as is taken
        self.send(struct.pack("<IHHIQ", MAGIC, VERSION, HELLO, 8, 0xffffffffffffffff) * 10, 50)
        self.send(b"\x16\x03\x03\xff\xff" + b"\xff" * 60000, 50, hold=True)  # a TLS record of 64 KiB

    def openssl(self, *how):
        openssl = shutil.which("openssl")
        if openssl is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([openssl, "s_client", "-connect", "%s:%d" % self.address, "-quiet", *how], input=b"",
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=5, check=False)

    def wrong_key(self):
        """And no key, another version of TLS, a rank of a run of other settings."""
        rank = f"ddpengine-1 1 2 {os.urandom(16).hex()} {os.urandom(8).hex()}"
        for identity in ("ddpengine", rank, "x" * 200):
            self.openssl("-tls1_3", "-psk", os.urandom(32).hex(), "-psk_identity", identity)
        self.openssl("-tls1_3")
        self.openssl("-tls1_2")

    def stolen_identity(self, recorded):
        """What a rank shows in clear before it proves anything, without its key."""
        found = re.search(rb"ddpengine-1 \d+ \d+ [0-9a-f]{32} [0-9a-f]{16}", recorded)
        if found:
            self.openssl("-tls1_3", "-psk", os.urandom(32).hex(), "-psk_identity", found[0].decode())

    def replay(self, recorded):
        """What a rank once sent, again: at once, piece by piece, and with one bit turned."""
        for data in recorded:
            self.send(data, 10)
            turned = bytearray(data)
            turned[self.rng.randrange(len(turned))] ^= 1 << self.rng.randrange(8)
            self.send(bytes(turned), 10, hold=True)
            s = self.connect()
            if s is None:
                continue
            with contextlib.suppress(OSError):
                for i in range(0, len(data), 97):
                    s.sendall(data[i:i + 97])
                    time.sleep(0.001)
            s.close()

    ALL = (connects, silence, random_bytes, http, lengths, wrong_key)


class Recorder:
    """Stands between a rank and rank 0 and keeps what the rank sends."""

    def __init__(self, port, endpoint):
        host, to = endpoint.rsplit(":", 1)
        self.to, self.sent = (host, int(to)), bytearray()
        self.listener = socket.create_server(("127.0.0.1", port))
        import threading
        self.thread = threading.Thread(target=self.relay, daemon=True)
        self.thread.start()

    def relay(self):
        import select
        with contextlib.suppress(OSError):
            while True:
                a, _ = self.listener.accept()
                try:
                    b = socket.create_connection(self.to)
                except OSError:
                    a.close()  # rank 0 is not there yet; the rank tries again
                    continue
                self.sent.clear()
                with a, b, contextlib.suppress(OSError):
                    while True:
                        for s in select.select([a, b], [], [])[0]:
                            data = s.recv(65536)
                            if not data:
                                raise OSError
                            (b if s is a else a).sendall(data)
                            if s is a:
                                self.sent += data

    def close(self):
        # accept() is woken by it, close() alone does not
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(10)
