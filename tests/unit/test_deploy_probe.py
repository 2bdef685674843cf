"""What a node's answer to the one script of a preflight means."""

from __future__ import annotations

import os
import subprocess
import time
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from k1.deploy import probe
from k1.errors import CheckFailed

# As a virtual board gives it, but shorter.
ANSWER = """\
==uname
6.1.158 riscv64
==now
1796078000
==init
busybox
==rsync
/usr/bin/rsync
==df
Filesystem           1024-blocks    Used Available Capacity Mounted on
/dev/vda4              7484768     59012   7341532   1% /data
==current
3629eb74dd02f34f
==previous
==trial
==releases
3629eb74dd02f34f
ed611b5922f73c42.new
==intact
yes
==exe
/data/opt/k1/releases/3629eb74dd02f34f/bin/k1-inferd
==model
98362432 1796070000
==addresses
1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever preferred_lft forever
2: eth0    inet 192.168.1.101/24 brd 192.168.1.255 scope global eth0\\       valid_lft forever preferred_lft forever
==files
/proc/sys/kernel/random/boot_id:2d3f
/proc/loadavg:0.25 0.10 0.03 1/70 900
/proc/meminfo:MemTotal:        2056704 kB
/proc/meminfo:MemAvailable:    1980000 kB
/proc/net/tcp:  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid
/proc/net/tcp:   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000   901
/proc/net/tcp:   1: 6501A8C0:1F9A 6401A8C0:9C40 01 00000000:00000000 00:00000000 00000000   901
/opt/k1/models/m-b179c9523d0e6a0f.ok:98362432 1796070000 b179
/opt/k1/current/etc/inferd.conf:# Written by k1 deploy.
/opt/k1/current/etc/inferd.conf:model = /opt/k1/models/m-b179c9523d0e6a0f.gguf
/data/etc/k1/node.conf:RANK=1
/data/etc/k1/node.conf:MTU=9000
/etc/os-release:NAME="virtual K1 board"
/etc/os-release:IMAGE_ID=k1-virt
/etc/os-release:IMAGE_VERSION=1ea0de2f0a5df3a2
/sys/class/net/eth0/address:00:11:22:33:44:51
/sys/class/net/lo/address:00:00:00:00:00:00
/sys/class/net/eth0/mtu:9000
/sys/class/net/lo/mtu:65536
/sys/class/thermal/thermal_zone0/temp:41500
"""


def test_an_answer_is_understood() -> None:
    facts = probe.understand(ANSWER)
    assert (facts.arch, facts.kernel, facts.init, facts.rsync) == ("riscv64", "6.1.158", "busybox", True)
    assert facts.image == "1ea0de2f0a5df3a2"
    assert (facts.free, facts.memory, facts.available, facts.load) == (7341532, 2056704, 1980000, 0.25)
    assert (facts.current, facts.previous, facts.on_trial, facts.intact) == ("3629eb74dd02f34f", "", False, True)
    assert facts.releases == {"3629eb74dd02f34f"}
    assert facts.running == "3629eb74dd02f34f"
    assert (facts.model, facts.checked) == ("98362432 1796070000", "98362432 1796070000 b179")
    assert facts.served_model == "m-b179c9523d0e6a0f.gguf"
    assert facts.conf == "RANK=1\nMTU=9000\n"
    assert facts.temperature == 41500
    assert facts.ports == (8080,)
    link = facts.cluster_link(IPv4Address("192.168.1.101"), frozenset())
    assert link == probe.Link("eth0", "00:11:22:33:44:51", 9000, ("192.168.1.101/24",))
    assert facts.links == (link,)


def test_another_system_has_a_name_and_a_stranger_daemon_its_path() -> None:
    text = ANSWER.replace("IMAGE_ID=k1-virt", 'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"')
    text = text.replace("/data/opt/k1/releases/3629eb74dd02f34f/bin/k1-inferd", "/usr/bin/k1-inferd")
    facts = probe.understand(text)
    assert facts.image == "Debian GNU/Linux 13 (trixie)"
    assert facts.running == "/usr/bin/k1-inferd"


def test_the_script_runs_in_this_machines_shell(tmp_path: Path) -> None:
    answer = subprocess.run(["sh", "-c", probe.script("m.gguf")], check=True, capture_output=True, text=True).stdout
    facts = probe.understand(answer)
    assert (facts.kernel, facts.arch) == (os.uname().release, os.uname().machine)
    assert abs(facts.now - time.time()) < 60
    assert facts.memory > facts.available > 0
    assert {link.name for link in facts.links} == {
        path.parent.name for path in Path("/sys/class/net").glob("*/address")
    } - {"lo"}


def test_odd_lines_of_a_kernel_are_left_out() -> None:
    gone, odd = "/sys/class/net/eth0/mtu:9000\n", "/sys/class/thermal/thermal_zone0/temp:disabled"
    text = ANSWER.replace(gone, "").replace("/sys/class/thermal/thermal_zone0/temp:41500", odd)
    facts = probe.understand(f"{text}/proc/meminfo:Odd:\n")
    assert (facts.links, facts.temperature, facts.memory) == ((), None, 2056704)


@pytest.mark.parametrize("answer", ["", "Welcome!\n", ANSWER.replace("==df\n", ""), ANSWER.partition("==files")[0]])
def test_an_answer_of_something_else_is_refused(answer: str) -> None:
    with pytest.raises(CheckFailed, match="the answer is not understood") as caught:
        probe.understand(answer)
    assert "POSIX shell that prints nothing by itself" in caught.value.hint
