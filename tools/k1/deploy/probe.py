"""What a node says of itself, asked in one go."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address

from k1.deploy.session import BASE, Node
from k1.errors import CheckFailed

NODE_CONF = "/data/etc/k1/node.conf"
_NET = "/sys/class/net"
# POSIX shell with what both busybox and Debian have. Each process costs a slow board tens of milliseconds, so there are
# few: files are printed as they are and understood here. @MODEL@: the model's file name below models/.
_SCRIPT = f"""
base={BASE}; m=$base/models/@MODEL@
say() {{ echo "==$1"; }}
say uname; uname -mr
say now; date +%s
say init; if [ -d /run/systemd/system ]; then echo systemd; elif [ -x /etc/init.d/S50inferd ]; then echo busybox; fi
say rsync; command -v rsync
folder=$base; [ -d $folder ] || folder=/opt; [ -d $folder ] || folder=/
say df; df -Pk $folder/
for link in current previous; do say $link; cd -P $base/$link 2>/dev/null && echo ${{PWD##*/}}; done
say trial; [ -f $base/trial ] && echo yes
say releases; for sums in $base/releases/*/SHA256SUMS; do [ -f $sums ] && r=${{sums%/*}} && echo ${{r##*/}}; done
say intact; cd $base/current/ 2>/dev/null && sha256sum -c SHA256SUMS >/dev/null 2>&1 && echo yes
say exe; for name in $(grep -lsx k1-inferd /proc/[0-9]*/comm); do readlink ${{name%comm}}exe; done
say model; [ -f $m ] && stat -c '%s %Y' $m
say addresses; ip -o -4 addr show
say files
grep -sH '' /proc/sys/kernel/random/boot_id /proc/loadavg /proc/meminfo /proc/net/tcp /proc/net/tcp6 ${{m%.gguf}}.ok \\
  $base/current/etc/inferd.conf {NODE_CONF} /etc/os-release {_NET}/*/address {_NET}/*/mtu \\
  /sys/class/thermal/thermal_zone*/temp
exit 0
"""
_LISTENS = re.compile(r"\s*\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:0000 0A ")


@dataclass(frozen=True)
class Link:
    """A network interface: its name, MAC, MTU in bytes and addresses with their prefixes."""

    name: str
    mac: str
    mtu: int
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    """A node as it is. free, memory, available: KiB; temperature: milli-degrees Celsius; now: seconds since 1970.

    image: the hash of our image, or the name of another system.
    """

    arch: str
    kernel: str
    now: int
    boot: str
    init: str
    rsync: bool
    image: str
    free: int
    current: str
    previous: str
    on_trial: bool
    releases: frozenset[str]
    intact: bool
    running: str
    model: str
    checked: str
    served_model: str
    conf: str
    links: tuple[Link, ...]
    load: float
    memory: int
    available: int
    temperature: int | None
    ports: tuple[int, ...] = field(default=())

    def cluster_link(self, address: IPv4Address, macs: frozenset[str]) -> Link | None:
        """The interface with the cluster's address, else one with a MAC of the cluster."""
        having = [link for link in self.links if str(address) in {each.split("/")[0] for each in link.addresses}]
        return next(iter(having or [link for link in self.links if link.mac in macs]), None)


def probe(node: Node, model: str = "none") -> Facts:
    """Ask a node for its facts; `model`: the file name of the model that is wanted there."""
    return understand(node.sh(script(model)))


def script(model: str) -> str:
    """The shell script whose output `understand` takes."""
    return _SCRIPT.replace("@MODEL@", model)


def understand(answer: str) -> Facts:
    """The facts in what the script prints; CheckFailed when it is something else."""
    said = _sections(answer)
    try:
        return _facts(said, _files(said["files"]))
    except (KeyError, ValueError, IndexError) as error:
        hint = "is the login shell of the account a POSIX shell that prints nothing by itself?"
        raise CheckFailed("the answer is not understood", hint=hint) from error


def _facts(said: Mapping[str, Sequence[str]], files: Mapping[str, Sequence[str]]) -> Facts:
    def one(key: str) -> str:
        return next(iter(said[key]), "")

    kernel, arch = one("uname").split()
    exe = re.sub(r".*/releases/([^/]+)/bin/.*", r"\1", one("exe"))
    memory = {line.partition(":")[0]: line.split()[1:2] for line in files["/proc/meminfo"]}
    heat = [lines[0] for path, lines in files.items() if path.startswith("/sys/class/thermal/")]
    tcp = [*files.get("/proc/net/tcp", ()), *files.get("/proc/net/tcp6", ())]
    return Facts(
        arch=arch,
        kernel=kernel,
        now=int(one("now")),
        boot=files["/proc/sys/kernel/random/boot_id"][0],
        init=one("init"),
        rsync=bool(said["rsync"]),
        image=_image(files.get("/etc/os-release", ())),
        free=int(said["df"][-1].split()[3]),
        current=one("current"),
        previous=one("previous"),
        on_trial=bool(said["trial"]),
        releases=frozenset(name for name in said["releases"] if not name.endswith((".new", ".old"))),
        intact=bool(said["intact"]),
        running=exe,
        model=one("model"),
        checked=next((lines[0] for path, lines in files.items() if path.endswith(".ok")), ""),
        served_model=_setting(files.get(f"{BASE}/current/etc/inferd.conf", ()), "model").rpartition("/")[2],
        conf="".join(f"{line}\n" for line in files.get(NODE_CONF, ())),
        links=tuple(_links(files, said["addresses"])),
        load=float(files["/proc/loadavg"][0].split()[0]),
        memory=int(memory["MemTotal"][0]),
        available=int(memory["MemAvailable"][0]),
        temperature=next((int(each) for each in heat if each.lstrip("-").isdigit()), None),
        ports=tuple(sorted({int(found[1], 16) for line in tcp if (found := _LISTENS.match(line))})),
    )


def _sections(answer: str) -> dict[str, list[str]]:
    """What follows each line `==name`."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in answer.splitlines():
        if line.startswith("=="):
            lines = found.setdefault(line[2:], [])
        else:
            lines.append(line)
    return found


def _files(lines: Sequence[str]) -> dict[str, list[str]]:
    """The lines of each file, from grep's `path:line`."""
    found: dict[str, list[str]] = {}
    for path, _, line in (each.partition(":") for each in lines):
        found.setdefault(path, []).append(line)
    return found


def _links(files: Mapping[str, Sequence[str]], addresses: Sequence[str]) -> Iterator[Link]:
    having = [line.split() for line in addresses]  # 2: eth0 inet 192.168.1.100/24 …
    for path, lines in files.items():
        name, _, leaf = path.removeprefix(f"{_NET}/").partition("/")
        mtu = files.get(f"{_NET}/{name}/mtu")  # None: it has just gone away
        if leaf == "address" and name != "lo" and mtu:
            yield Link(name, lines[0], int(mtu[0]), tuple(words[3] for words in having if words[1] == name))


def _image(release: Sequence[str]) -> str:
    """os-release(5): with our IMAGE_ID, IMAGE_VERSION is the image's hash; other systems have a name."""
    ours = _setting(release, "IMAGE_ID").startswith("k1-")
    return _setting(release, "IMAGE_VERSION" if ours else "PRETTY_NAME")


def _setting(lines: Sequence[str], key: str) -> str:
    """The value of `key = value` or KEY="value"."""
    for name, _, value in (line.partition("=") for line in lines):
        if name.strip() == key:
            return value.strip().strip("\"'")
    return ""
