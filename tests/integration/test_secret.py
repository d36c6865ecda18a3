"""The secret of a run: the files that are taken and refused, ranks with the same one, with another one, with none; it is never
shown. Addresses other than loopback need it or a word in writing."""
import os
import pathlib
import re
import stat
import sys

import harness
from harness import Case, children_of

GOOD = "00112233445566778899aabbccddeeff" * 2


class Secret(Case):
    def file(self, name, text=GOOD + "\n", mode=0o600):
        path = self.dir / name
        path.write_text(text)
        path.chmod(mode)
        return path

    def nodes(self, *secrets, settings=({}, {}), timeout="20s"):
        """A rank for each secret file (None: without), all at one loopback address."""
        url = f"tcp://127.0.0.1:{harness.free_port()}"
        p = []
        for rank, secret in enumerate(secrets):
            group = {"init_method": url, "world_size": len(secrets), "rank": rank, "rendezvous_timeout": timeout,
                     "secret_file": secret}
            p.append(self.start("-c", self.ini(f"node{rank}.ini", {"group": group}, {"output": {"dir": self.dir / f"out{rank}"}},
                                               settings[rank % len(settings)])))
        return p

    # ---- making one -------------------------------------------------------------------------------------------------
    def test_gen_secret(self):
        a, b = self.run("--gen-secret"), self.run("--gen-secret")
        for r in (a, b):
            self.equal(r.code, 0, r)
            self.check(re.fullmatch("[0-9a-f]{64}\n", r.out), r)
        self.check(a.out != b.out, "the same twice")
        for form in (["--gen-secret", "one"], ["--gen-secret=two"]):
            old = os.umask(0)
            try:
                r = self.run(*form)
            finally:
                os.umask(old)
            path = self.dir / form[-1].split("=")[-1]
            self.equal((r.code, r.out), (0, ""), r)
            self.equal(stat.S_IMODE(path.stat().st_mode), 0o600)
            text = path.read_text()
            self.check(re.fullmatch("[0-9a-f]{64}\n", text), path)
            self.fails(self.run(*form), 2, "exists", path.name)
            self.equal(path.read_text(), text)
        os.symlink(self.dir / "elsewhere", self.dir / "link")
        self.fails(self.run("--gen-secret", "link"), 2, "exists")
        self.fails(self.run("--gen-secret", "no/such/folder"), 1, "no/such/folder")
        self.fails(self.run("--gen-secret", "three", "four"), 2, "too many arguments: four")
        self.check(not (self.dir / "three").exists())

    # ---- reading one ------------------------------------------------------------------------------------------------
    def refused(self, path, *parts):
        r = self.run("-c", self.ini("x.ini", {"group": {"secret_file": path}}), "--check")
        self.fails(r, 2, "x.ini:", f"secret_file = {path}", *parts)

    def test_files_that_are_refused(self):
        self.refused(self.dir / "absent", "No such file", "--gen-secret")
        for mode in (0o644, 0o640, 0o604, 0o610, 0o602):
            self.refused(self.file("open", mode=mode), f"{mode:04o}", "chmod 600")
        self.refused(self.dir, "not a regular file")
        os.mkfifo(self.dir / "fifo", 0o600)
        self.refused(self.dir / "fifo", "not a regular file")
        for name, text in (("empty", ""), ("short", GOOD[:30] + "\n"), ("odd", GOOD[:33] + "\n"), ("long", GOOD * 2 + "00\n"),
                           ("huge", GOOD * 100), ("words", "correct horse battery staple 1234\n"), ("nul", GOOD + "\0\n"),
                           ("two", GOOD + "\n" + GOOD + "\n"), ("front", " " + GOOD + "\n")):
            self.refused(self.file(name, text), "does not hold a secret", "hex digits")
        if os.geteuid() == 0:
            path = self.file("theirs")
            os.chown(path, 65534, 65534)
            self.refused(path, "belongs to user 65534")

    def test_files_that_are_taken(self):
        for i, text in enumerate((GOOD[:32], GOOD + "\r\n", GOOD * 2, GOOD.upper() + "\n\n")):
            r = self.run("-c", self.ini("x.ini", {"group": {"secret_file": self.file(f"s{i}", text, 0o400)}}), "--check")
            self.equal(r.code, 0, r)

    # ---- rendezvous with it --------------------------------------------------------------------------------------------
    def test_ranks_with_the_same_secret(self):
        """Encrypted, and the bits are those of a run in clear; neither the files' text nor their names' is needed alike."""
        plain = [self.finish(p) for p in self.nodes(None, None)]
        bits = (self.dir / "out0" / "summary.json").read_text().split('"parameter_sha256": "')[1][:64]
        p = self.nodes(self.file("a"), self.file("b", GOOD.upper()))
        for r in plain + [self.finish(q) for q in p]:
            self.equal(r.code, 0, r)
            self.check(GOOD not in (r.out + r.err).lower(), "the secret was printed")
        self.check(bits in (self.dir / "out0" / "summary.json").read_text(), "other bits than in clear")
        r = self.run("-c", self.dir / "node0.ini", "--print-config")
        self.check(r.code == 0 and GOOD not in r.out, r)

    def all_leave(self, processes, *parts):
        for r in [self.finish(p) for p in processes]:
            self.fails(r, 4, "differ in their secret", "rank 1 at 127.0.0.1:", "Use the same secret_file", *parts)
            self.check(GOOD not in r.err and GOOD[:32] not in r.err, r)

    def test_ranks_with_unlike_secrets(self):
        a, b = self.file("a"), self.file("b", GOOD[::-1])
        self.all_leave(self.nodes(a, b), re.compile(r"fingerprint is [0-9a-f]{16} \(rank 1\) against [0-9a-f]{16} \(rank 0\)"))
        self.all_leave(self.nodes(a, None), re.compile(r"fingerprint is none \(rank 1\) against [0-9a-f]{16} \(rank 0\)"))
        self.all_leave(self.nodes(None, b), re.compile(r"fingerprint is [0-9a-f]{16} \(rank 1\) against none \(rank 0\)"))

    def test_process_with_another_secret_and_other_settings(self):
        """It cannot end the rendezvous of those whose settings it does not know: it leaves, and they say where it came from."""
        a, b = self.file("a"), self.file("b", GOOD[::-1])
        p = self.nodes(a, b, settings=({}, {"optimizer": {"lr": 0.07}}), timeout="3s")
        self.fails(self.finish(p[1]), 4, "differ in their secret")
        self.equal(p[0].poll(), None, "rank 0 has left")
        r = self.finish(p[0])
        self.fails(r, 4, "rank 1 of world_size 2 did not come", "without the run's secret came from 127.0.0.1:")
        self.check("warning: refused a process" in r.err, r)

    def test_address_that_others_reach(self):
        far = {"init_method": f"tcp://192.0.2.1:{harness.free_port()}", "world_size": 2, "rank": 0}
        r = self.run("-c", self.ini("x.ini", {"group": far}))
        self.fails(r, 2, "192.0.2.1", "auth = none", "secret_file", "--gen-secret")
        r = self.run("-c", self.ini("x.ini", {"group": {**far, "secret_file": self.file("a")}}))
        self.fails(r, 4, "not an address of this host")

    # ---- the supervisor's own -----------------------------------------------------------------------------------------
    def test_family_has_a_secret_of_its_own(self):
        """Another user of the machine cannot join, though the port is known: a rank in clear is refused, with the fingerprint."""
        long = {"train": {"epochs": 100000}, "output": {"log_every": 50}}
        path = self.ini("family.ini", long)
        p = self.start("-c", path, "--nproc", 2)
        self.trained_a_while(p)
        kids = children_of(p.pid)
        port = self.listener_of(kids[0])
        group = {"group": {"init_method": f"tcp://127.0.0.1:{port}", "world_size": 2, "rank": 1, "rendezvous_timeout": "5s"}}
        r = self.run("-c", self.ini("stray.ini", long, group))
        self.fails(r, 4, "differ in their secret", "fingerprint is none (rank 1)")
        self.equal(p.poll(), None, "the family has ended")
        p.terminate()
        self.finish(p)

    def listener_of(self, pid):
        own = {os.readlink(f).strip("socket:[]") for f in pathlib.Path(f"/proc/{pid}/fd").iterdir()
               if os.path.islink(f) and os.readlink(f).startswith("socket:")}
        first = None
        for row in pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
            words = row.split()
            if words[3] == "0A" and words[9] in own:
                inode, port = int(words[9]), int(words[1].split(":")[1], 16)
                first = min(first, (inode, port)) if first else (inode, port)  # the supervisor opened it before any other
        return first[1]


if __name__ == "__main__":
    sys.exit(harness.main(Secret))
