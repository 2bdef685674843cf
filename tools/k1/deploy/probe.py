"""What a node says of itself, asked in one go."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import IPv4Address

from k1.deploy.session import BASE, Node
from k1.errors import CheckFailed

# Everything in POSIX shell and what both busybox and Debian have. $1: the model's file name below models/.
_SCRIPT = f"""
base={BASE}
echo arch=$(uname -m)
echo kernel=$(uname -r)
echo now=$(date +%s)
echo boot=$(cat /proc/sys/kernel/random/boot_id)
if [ -d /run/systemd/system ]; then echo init=systemd; elif [ -x /etc/init.d/S50inferd ]; then echo init=busybox; fi
rsync=$(rsync --version 2>/dev/null | sed -n 's/.*version \\([0-9.]*\\).*/\\1/p;1q'); echo rsync=$rsync
folder=$base; [ -d $folder ] || folder=/opt; [ -d $folder ] || folder=/
df -Pk $folder/ | tail -n 1 | {{ read -r _ size _ free _; echo free=$free; }}
echo current=$(basename "$(readlink $base/current 2>/dev/null)" 2>/dev/null)
echo previous=$(basename "$(readlink $base/previous 2>/dev/null)" 2>/dev/null)
[ -f $base/trial ] && echo trial=yes
for sums in $base/releases/*/SHA256SUMS; do
  [ -f $sums ] || continue
  r=${{sums%/*}}; r=${{r##*/}}
  case $r in *.new) ;; *) echo release=$r ;; esac
done
if [ -f $base/current/SHA256SUMS ]; then
  (cd $base/current && sha256sum -c SHA256SUMS >/dev/null 2>&1) && echo intact=yes || echo intact=no
fi
pid=$(pidof k1-inferd | cut -d' ' -f1)
[ -n "$pid" ] && echo exe=$(readlink /proc/$pid/exe)
m=$base/models/@MODEL@
[ -f $m ] && echo model=$(stat -c '%s %Y' $m)
[ -f ${{m%.gguf}}.ok ] && echo checked=$(cat ${{m%.gguf}}.ok)
[ -f /data/etc/k1/node.conf ] && sed 's/^/conf=/' /data/etc/k1/node.conf
for a in /sys/class/net/*; do
  i=${{a##*/}}; [ $i = lo ] && continue
  ips=$(ip -o -4 addr show dev $i | sed -n 's/.* inet \\([0-9./]*\\).*/\\1/p')
  echo link=$i $(cat $a/address) $(cat $a/mtu) $ips
done
read -r load _ </proc/loadavg; echo load=$load
sed -n 's/^MemTotal: *\\([0-9]*\\).*/memory=\\1/p;s/^MemAvailable: *\\([0-9]*\\).*/available=\\1/p' /proc/meminfo
for t in /sys/class/thermal/thermal_zone*/temp; do [ -r $t ] && echo temperature=$(cat $t); done
sed -n 's/^ *[0-9]*: [0-9A-F]*:\\([0-9A-F]\\{{4\\}}\\) [0-9A-F]*:0000 0A .*/port=\\1/p' /proc/net/tcp*
exit 0
"""


@dataclass(frozen=True)
class Link:
    """A network interface: its name, MAC, MTU in bytes and addresses with their prefixes."""

    name: str
    mac: str
    mtu: int
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    """A node as it is. free, memory, available: KiB; temperature: milli-degrees Celsius; now: seconds since 1970."""

    arch: str
    kernel: str
    now: int
    boot: str
    init: str
    rsync: str
    free: int
    current: str
    previous: str
    on_trial: bool
    releases: frozenset[str]
    intact: bool
    running: str
    model: str
    checked: str
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
    found: dict[str, list[str]] = {}
    for line in node.sh(_SCRIPT.replace("@MODEL@", model)).splitlines():
        key, _, value = line.partition("=")
        found.setdefault(key, []).append(value)

    def one(key: str, default: str = "") -> str:
        return found.get(key, [default])[0]

    if not one("arch"):
        hint = "is the login shell of the account a POSIX shell that prints nothing by itself?"
        raise CheckFailed("the answer is not understood", hint=hint)
    temperature = one("temperature")
    running = re.search(r"/releases/([^/]+)/bin/", one("exe"))
    return Facts(
        arch=one("arch"),
        kernel=one("kernel"),
        now=int(one("now", "0")),
        boot=one("boot"),
        init=one("init"),
        rsync=one("rsync"),
        free=int(one("free", "0") or 0),
        current=one("current"),
        previous=one("previous"),
        on_trial=one("trial") == "yes",
        releases=frozenset(found.get("release", ())),
        intact=one("intact") == "yes",
        running=running[1] if running else one("exe"),
        model=one("model"),
        checked=one("checked"),
        conf="".join(f"{line}\n" for line in found.get("conf", ())),
        links=tuple(_link(line) for line in found.get("link", ())),
        load=float(one("load", "0")),
        memory=int(one("memory", "0")),
        available=int(one("available", "0")),
        temperature=int(temperature) if temperature.lstrip("-").isdigit() else None,
        ports=tuple(sorted({int(port, 16) for port in found.get("port", ())})),
    )


def _link(line: str) -> Link:
    name, mac, mtu, *addresses = line.split()
    return Link(name, mac, int(mtu), tuple(addresses))
