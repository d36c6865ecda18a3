"""An sshd for a case, with keys of its own in the case's folder."""
import os
import shutil
import subprocess

from harness import Skip, free_port, until


class Ssh:
    def __init__(self, case):
        self.program = shutil.which("sshd") or ("/usr/sbin/sshd" if os.path.exists("/usr/sbin/sshd") else None)
        if self.program is None or shutil.which("ssh") is None:
            raise Skip("no sshd or no ssh: install openssh-server and openssh-client")
        self.case, self.dir, self.port = case, case.dir / "ssh", free_port()
        self.dir.mkdir()
        for name in ("host", "key", "other"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.dir / name], check=True)

    def listen(self, addresses, where=()):
        """Starts one at these addresses; `where`: a command in front of it, as ip netns exec."""
        d, name = self.dir, f"sshd-{addresses[0]}"
        lines = [*(f"ListenAddress {a}" for a in addresses), f"Port {self.port}", f"HostKey {d}/host", "PidFile none",
                 f"AuthorizedKeysFile {d}/key.pub", "StrictModes no", "UsePAM no", "PasswordAuthentication no",
                 "KbdInteractiveAuthentication no", "PermitRootLogin prohibit-password"]
        sanitizers = [f'"{n}={os.environ[n]}"' for n in ("ASAN_OPTIONS", "LSAN_OPTIONS", "UBSAN_OPTIONS") if n in os.environ]
        if sanitizers:
            lines.append("SetEnv " + " ".join(sanitizers))
        (d / f"{name}.conf").write_text("\n".join(lines) + "\n")
        log = d / f"{name}.log"
        command = [self.program, "-D", "-f", d / f"{name}.conf", "-E", log]
        if os.geteuid() == 0 and not os.path.isdir("/run/sshd"):  # which root's sshd wants: one of its own, nobody else sees it
            command = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs t /run && mkdir -m 755 /run/sshd && exec "$@"', "sh", *command]
        p = self.case.spawn([*where, *command])
        until(lambda: p.poll() is not None or (log.exists() and log.read_text().count("Server listening") == len(addresses)),
              "sshd does not listen")
        if p.poll() is not None:
            raise Skip("sshd cannot run here: " + (log.read_text() if log.exists() else p.stderr.read()).strip())

    def options(self, key="key", hosts="accept-new", port=None):
        return (f"-p {port or self.port} -F none -i {self.dir}/{key} -oIdentitiesOnly=yes "
                f"-oUserKnownHostsFile={self.dir}/known-{hosts} -oStrictHostKeyChecking={hosts}")
