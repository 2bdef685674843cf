"""Nodes without boards: each a network, mount and process namespace of this machine with a real sshd in it.

They have our image's own init scripts, the programs of this machine's userland, and disks that can be filled. They
stand on a bridge; this machine has a leg on it, as an operator's computer has. Needs root.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import textwrap
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from k1.paths import REPO
from support.inferd import wait_until
from support.netns import Network, ip

OVERLAY = REPO / "board" / "k1" / "overlay"
_MAC = "00:11:22:33:44:5{}"
_OPERATOR = "10.77.0.250"
# What a namespace starts with; $1: the node's folder. Its own /opt, /data, /run, /etc and boot, and nothing more.
_BOOT = """
set -e
f=$1
mount --make-rprivate /
mount -t proc proc /proc
mount --bind $f/boot_id /proc/sys/kernel/random/boot_id
mount --bind $f/etc /etc
mount --bind $f/logger /usr/bin/logger
[ ! -e $f/uname ] || mount --bind $f/uname /usr/bin/uname
mkdir -p /data; mount --bind $f/data /data
mkdir -p /opt/k1; mount --bind $f/data/opt/k1 /opt/k1
mount -t tmpfs tmpfs /run
mkdir -p /run/sshd
mount --bind /dev/null /dev/kmsg
PATH=/usr/sbin:/usr/bin:/sbin:/bin
[ ! -x /data/booted ] || /etc/init.d/S50inferd start
exec /usr/sbin/sshd -D -e -f $f/sshd_config
"""


class SshNode:
    """Node r: switched on, off, and what is on its disk."""

    def __init__(self, net: Network, rank: int, folder: Path, data_mib: int) -> None:
        self.net, self.rank, self.folder, self.address = net, rank, folder, net.address(rank)
        self.data = folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._lay_out(data_mib)

    def _lay_out(self, data_mib: int) -> None:
        etc = self.folder / "etc"
        shutil.copytree(OVERLAY / "etc" / "init.d", etc / "init.d")
        (etc / "k1").mkdir()
        (etc / "k1" / "board.conf").write_text("")
        for name in ("passwd", "group", "nsswitch.conf", "ld.so.cache", "localtime"):
            if Path("/etc", name).exists():
                shutil.copyfile(Path("/etc", name), etc / name)
        with (etc / "passwd").open("a") as passwd, (etc / "group").open("a") as group:
            passwd.write("inferd:x:901:901::/:/usr/sbin/nologin\noperator:x:902:902::/:/bin/sh\n")
            group.write("inferd:x:901:\noperator:x:902:\n")
        shutil.copytree("/etc/pam.d", etc / "pam.d")
        shutil.copytree("/etc/security", etc / "security")
        (etc / "sudoers").touch(mode=0o440)
        (etc / "shadow").write_text("root:*:19000::::::\noperator:*:19000::::::\n")
        (etc / "init.d" / "S20network").write_text(_network_script())
        (self.folder / "logger").write_text('#!/bin/sh\nsed -u "s/^/k1-inferd: /" >>/data/log/messages\n')
        (self.folder / "logger").chmod(0o755)
        self.data.mkdir()
        # A disk of its own, which can be full.
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={data_mib}m,mode=755", "k1-node", self.data], check=True)
        for name in ("opt/k1", "log", "etc/k1"):
            (self.data / name).mkdir(parents=True)
        (self.data / "log" / "messages").touch()
        self.new_host_key()

    def new_host_key(self) -> None:
        key = self.folder / "host_key"
        key.unlink(missing_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)

    def allow(self, public_key: Path) -> None:
        keys = self.folder / "etc" / "authorized_keys"
        shutil.copyfile(public_key, keys)
        config = f"""\
            Port 22
            ListenAddress 0.0.0.0
            HostKey {self.folder}/host_key
            AuthorizedKeysFile /etc/authorized_keys
            PasswordAuthentication no
            UsePAM no
            StrictModes no
            PermitRootLogin yes
            PidFile none
            Subsystem sftp internal-sftp
        """
        (self.folder / "sshd_config").write_text(textwrap.dedent(config))

    def let_operator_in(self) -> None:
        """The account operator may do everything, without a password."""
        (self.folder / "etc" / "sudoers").write_text("operator ALL=(ALL) NOPASSWD: ALL\n")

    def become_arm(self) -> None:
        """From its next start on it is an Arm board with a kernel of its own, as far as one can tell from there.

        Its programs run in an emulator, which lies below the release: /proc/PID/exe names it instead of the program.
        """
        (self.folder / "uname").write_text("#!/bin/sh\n[ $1 = -m ] || printf '6.12.0-arm64 '; echo aarch64\n")
        shell = self.folder / "arm-shell"
        shell.write_text(
            '#!/bin/sh\nexec sh -c "$(printf %s "$SSH_ORIGINAL_COMMAND" | '
            "sed 's,/[^ ]*/bin/k1-inferd --version,qemu-aarch64-static &,')\"\n"
        )
        for path in (self.folder / "uname", shell):
            path.chmod(0o755)
        with (self.folder / "sshd_config").open("a") as config:
            config.write(f"ForceCommand {shell}\n")
        script = self.folder / "etc" / "init.d" / "S50inferd"
        emulator = "${program%/*}/emulator/k1-inferd"
        lay = f'mkdir -p "${{program%/*}}/emulator" && cp /usr/bin/qemu-aarch64-static "{emulator}"'
        start, changed = '-x "$program" --', f'-x "{emulator}" -- "$program"'
        text = script.read_text()
        assert text.count(start) == 1
        script.write_text(
            text.replace("\t\tstart-stop-daemon -S", f"\t\t{lay}\n\t\tstart-stop-daemon -S").replace(start, changed)
        )

    @property
    def is_on(self) -> bool:
        return self._process is not None

    def on(self) -> None:
        """A new boot; the daemon starts with it when it is meant to."""
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        (self.folder / "boot.sh").write_text(_BOOT)
        words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", self.folder / "boot.sh", self.folder]
        with (self.folder / "console").open("ab") as console:
            self._process = subprocess.Popen(
                self.net.command(self.rank, *words), stdout=console, stderr=console, start_new_session=True
            )
        wait_until(f"node {self.rank} is up", self._listens)

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "console").read_text()
        try:
            socket.create_connection((self.address, 22), timeout=1).close()
        except OSError:
            return False
        return True

    def off(self) -> None:
        """Power cut: every process of it is gone at once, its disk stays."""
        if self._process:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
            wait_until(f"node {self.rank} is off", lambda: not self.pids())

    def start_at_boot(self) -> None:
        (self.data / "booted").touch(mode=0o755)

    def pids(self) -> list[str]:
        return subprocess.run(
            ["ip", "netns", "pids", self.net.names[self.rank]], capture_output=True, text=True
        ).stdout.split()

    def remove(self) -> None:
        self.off()
        subprocess.run(["umount", "-l", self.data], check=False)

    # --- what is there

    @property
    def base(self) -> Path:
        return self.data / "opt" / "k1"

    @property
    def current(self) -> str:
        link = self.base / "current"
        return os.readlink(link).removeprefix("releases/") if link.is_symlink() else ""

    @property
    def models(self) -> list[Path]:
        return sorted((self.base / "models").glob("*.gguf"))

    def fill(self, leave_kib: int) -> None:
        """Leave so much free."""
        free = os.statvfs(self.data)
        with (self.data / "filler").open("wb") as filler:
            filler.write(b"\0" * (free.f_bavail * free.f_frsize - leave_kib * 1024))

    def unfill(self) -> None:
        (self.data / "filler").unlink()

    def daemons(self) -> list[str]:
        """The k1-inferd that run there, as their executables."""
        found = []
        for pid in self.pids():
            try:
                exe = os.readlink(f"/proc/{pid}/exe")
            except OSError:
                continue
            if "k1-inferd" in exe:
                found.append(exe)
        return found


def _network_script() -> str:
    """Stands in for S20network, which wants busybox: what reload does to the cluster's interface."""
    return textwrap.dedent("""\
        #!/bin/sh
        . /data/etc/k1/node.conf
        ip link set eth0 down
        ip link set eth0 address "$MAC"
        ip link set eth0 mtu "$MTU"
        ip addr flush dev eth0
        ip addr add "$ADDRESS" dev eth0
        ip link set eth0 up
    """)


class Farm:
    """Several nodes and the operator's way to them."""

    def __init__(self, net: Network, folder: Path, count: int, data_mib: int) -> None:
        self.net, self.folder = net, folder
        self.leg = f"k1leg{os.getpid() % 100000}"
        self.key = folder / "id_ed25519"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key], check=True)
        self.nodes = []
        for rank in range(count):
            (folder / f"node{rank}" / "etc").mkdir(parents=True)
            self.nodes.append(SshNode(net, rank, folder / f"node{rank}", data_mib))

    def up(self) -> None:
        ip(
            "-n",
            self.net.hub,
            "link",
            "add",
            "operator",
            "type",
            "veth",
            "peer",
            "name",
            self.leg,
            "netns",
            str(os.getpid()),
        )
        ip("-n", self.net.hub, "link", "set", "operator", "master", "br0", "up")
        ip("address", "add", f"{_OPERATOR}/24", "dev", self.leg)
        ip("link", "set", self.leg, "up")
        for node in self.nodes:
            ip("-n", self.net.names[node.rank], "link", "set", "eth0", "address", _MAC.format(node.rank))
            node.allow(self.key.with_suffix(".pub"))
            node.on()

    def down(self) -> None:
        for node in self.nodes:
            node.remove()

    def sent(self) -> int:
        """Bytes that have left this machine towards the nodes."""
        return int(Path(f"/sys/class/net/{self.leg}/statistics/tx_bytes").read_text())

    def mtus(self) -> list[int]:
        """The MTU of each node's interface."""
        shown = [self.net.command(node.rank, "cat", "/sys/class/net/eth0/mtu") for node in self.nodes]
        return [int(subprocess.run(words, check=True, capture_output=True).stdout) for words in shown]

    def slow_down(self, rate: str | None) -> None:
        """Let what leaves this machine towards the nodes go at such a rate (tc-tbf(8)); None: at any."""
        shape = ["tbf", "rate", rate, "burst", "32k", "latency", "50ms"] if rate else []
        subprocess.run(["tc", "qdisc", "replace" if rate else "delete", "dev", self.leg, "root", *shape], check=True)

    def replace_switch(self, mtu: int) -> None:
        """One whose ports carry frames of so many bytes."""
        for node in self.nodes:
            ip("-n", self.net.hub, "link", "set", f"n{node.rank}", "mtu", str(mtu))

    def fleet(self, model: Path, programs: Path, name: str = "fleet.toml", **cluster: object) -> Path:
        """A fleet.toml for these nodes."""
        path = self.folder / name
        shared = {"model": str(model), "programs": str(programs), "n_ctx": 256, "mtu": 1500, **cluster}
        lines = ["[cluster]", *(f"{key} = {json.dumps(value)}" for key, value in shared.items())]
        lines += ["[ssh]", f'key = "{self.key}"']
        for node in self.nodes:
            lines += ["[[node]]", f"rank = {node.rank}", f'address = "{node.address}/24"', "n_threads = 1"]
        path.write_text("\n".join(lines) + "\n")
        return path


@contextmanager
def farm(folder: Path, count: int = 4, data_mib: int = 160) -> Iterator[Farm]:
    """Nodes that are on, and gone afterwards."""
    net = Network(count)
    with ExitStack() as stack:
        stack.callback(net.down)
        net.up()
        made = Farm(net, folder, count, data_mib)
        stack.callback(made.down)
        made.up()
        yield made
