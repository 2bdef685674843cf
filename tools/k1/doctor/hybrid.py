"""Checks of a server that runs large models on CPU and GPU together."""

from __future__ import annotations

import csv
import io
import re

from k1.doctor.check import Case, Check, Fix, Outcome, fail, ok, sysctl, version, warn
from k1.doctor.system import Skip

_PACKAGES = ("usr/lib", "usr/local/lib", "opt/*/lib", "opt/*/envs/*/lib")


class _Hybrid(Check):
    applies_to = "a server with several NUMA nodes, an x86 CPU or an NVIDIA GPU"

    def _applies(self, case: Case) -> bool:
        system = case.system
        x86 = "vendor_id" in (system.find("/proc/cpuinfo") or "")
        return x86 or system.numa_nodes > 1 or _has_nvidia(case)


def _has_nvidia(case: Case) -> bool:
    return case.system.find("/proc/driver/nvidia/version") is not None


class NumaBalancing(_Hybrid):
    """The kernel moves pages between NUMA nodes while the model is read."""

    id = "numa-balancing"
    title = "automatic NUMA balancing"
    cause = (
        "The kernel moves 4 KiB pages between NUMA nodes each time other experts are used: decoding falls from about "
        "15 to below 5 tokens/s with much system time, and loading a model stalls for minutes."
    )
    fixes = (
        sysctl("kernel.numa_balancing", 0, "99-llm-numa.conf"),
        Fix(("numactl --interleave=all ./build/bin/llama-server …",)),
    )
    reference = "guide 004, part 1"

    def _examine(self, case: Case) -> Outcome:
        value = case.system.text("/proc/sys/kernel/numa_balancing")
        nodes = case.system.numa_nodes
        if nodes < 2:
            return ok("one NUMA node: there is nowhere to move pages to")
        text = f"kernel.numa_balancing = {value} with {nodes} NUMA nodes"
        return ok(text) if value == "0" else warn(text)


class GpuDriver(_Hybrid):
    """nvidia-smi cannot talk to the loaded driver."""

    id = "gpu-driver"
    title = "NVIDIA driver"
    cause = "Kernel module and user-space library of the driver differ, usually after an upgrade without a reboot."
    fixes = (Fix(("sudo reboot",)),)
    reference = "guide 004, part 3"

    def _examine(self, case: Case) -> Outcome:
        if not _has_nvidia(case):
            raise Skip("no NVIDIA driver is loaded")
        status, text = case.system.tool("nvidia-smi")
        return ok("nvidia-smi answers") if status == 0 else fail(" ".join(text.split()) or f"status {status}")


class GpuMemory(_Hybrid):
    """Too little free VRAM for attention, shared experts and KV cache."""

    id = "gpu-memory"
    title = "free VRAM"
    cause = (
        "Attention, dense layers, shared experts and KV cache of a large MoE model need what the guide budgets for a "
        "24 GB card; the card is smaller, or another process holds memory."
    )
    fixes = (
        Fix(("nvidia-smi    # which process holds memory",)),
        Fix((r"k1 doctor tensors MODEL.gguf -ngl 99 -ot 'blk\.[0-9]+\.ffn_.*_exps\.weight=CPU' -mla 3 -fa -ctk q8_0",)),
    )
    reference = "guide 004, part 1"

    def _examine(self, case: Case) -> Outcome:
        rows = list(csv.reader(io.StringIO(case.system.output("nvidia-smi")), skipinitialspace=True))
        cards = [(row[0], row[1], int(row[3].split()[0])) for row in rows if len(row) == 4 and row[3][:1].isdecimal()]
        if not cards:
            raise Skip("nvidia-smi lists no card with its memory")
        index, name, free = max(cards, key=lambda card: card[2])
        text = f"GPU {index} ({name}): {free} MiB free, wanted {case.limits.max_vram_mb}"
        return ok(text) if free >= case.limits.max_vram_mb else warn(text)


class HugePages(_Hybrid):
    """Transparent huge pages are off."""

    id = "huge-pages"
    title = "transparent huge pages"
    cause = "With 4 KiB pages only, reading hundreds of GB of experts costs many TLB misses."
    fixes = (
        Fix(
            ("echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",),
            (("/sys/kernel/mm/transparent_hugepage/enabled", "madvise\n"),),
        ),
    )
    reference = "Linux, admin-guide/mm/transhuge"

    def _examine(self, case: Case) -> Outcome:
        found = re.search(r"\[(\w+)\]", case.system.text("/sys/kernel/mm/transparent_hugepage/enabled"))
        if not found:
            raise Skip("/sys/kernel/mm/transparent_hugepage/enabled names no mode")
        return warn("never") if found[1] == "never" else ok(found[1])


class Governor(_Hybrid):
    """The CPU is kept at a low clock."""

    id = "governor"
    title = "CPU frequency governor"
    cause = "The governor holds the clock down, and the experts are computed on the CPU."
    fixes = (Fix(("sudo cpupower frequency-set -g performance",)),)
    reference = "Linux, admin-guide/pm/cpufreq"

    def _examine(self, case: Case) -> Outcome:
        names = case.system.glob("/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")
        if not names:
            raise Skip("the kernel does not set the clock here (no cpufreq)")
        governors = {case.system.text(name) for name in names}
        driver = case.system.find(names[0].replace("scaling_governor", "scaling_driver")) or "unknown"
        text = f"{', '.join(sorted(governors))} (driver {driver})"
        # These two choose the clock in hardware, and call that powersave.
        fixed = driver not in ("intel_pstate", "amd-pstate-epp")
        return warn(text) if fixed and "powersave" in governors else ok(text)


class Ktransformers(_Hybrid):
    """KTransformers is older than the tested version."""

    id = "ktransformers"
    title = "KTransformers version"
    cause = "The guide's figures and options were taken with a newer version."
    fixes = (Fix(("pip install -U ktransformers",)),)
    reference = "guide 004, pinned versions"

    def _examine(self, case: Case) -> Outcome:
        names = [
            name
            for folder in _PACKAGES
            for name in case.system.glob(f"{folder}/python3*/*-packages/ktransformers-*.dist-info")
        ]
        if not names:
            raise Skip("ktransformers is not in the system's Python folders")
        found = names[0].rsplit("ktransformers-", 1)[1].removesuffix(".dist-info")
        tested = case.limits.tested.ktransformers
        text = f"{found}, tested {tested}"
        return warn(text) if version(found)[:3] < version(tested) else ok(text)


CHECKS: tuple[Check, ...] = (NumaBalancing(), GpuDriver(), GpuMemory(), HugePages(), Governor(), Ktransformers())
