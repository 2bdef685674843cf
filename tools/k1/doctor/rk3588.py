"""Checks of an RK3588 board whose NPU runs RKNN or RKLLM models."""

from __future__ import annotations

import re

from k1.doctor.check import Case, Check, Fix, Outcome, fail, ok, version, warn
from k1.doctor.system import Skip

_COMPACT = Fix(
    ("echo 1 | sudo tee /proc/sys/vm/compact_memory",),
    (("/proc/sys/vm/compact_memory", "1\n"),),
)
_BOOT_CMA = Fix(
    ("sudoedit /boot/armbianEnv.txt    # cma=512M in the line extraargs=, or: extraargs=cma=512M", "sudo reboot")
)
_MEMLOCK = Fix(
    ("ulimit -l unlimited", "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/99-npu-memlock.conf"),
    (("/etc/security/limits.d/99-npu-memlock.conf", "* - memlock unlimited\n"),),
)
_UNIT = Fix(("sudo systemctl edit SERVICE    # [Service] LimitMEMLOCK=infinity, for a service",))


class _Rk3588(Check):
    applies_to = "an RK3588 board"

    def _applies(self, case: Case) -> bool:
        return "rk3588" in (case.system.find("/proc/device-tree/compatible") or "")


def _meminfo_mb(case: Case, key: str) -> int:
    found = re.search(rf"^{key}: +(\d+) kB", case.system.text("/proc/meminfo"), re.MULTILINE)
    if not found:
        raise Skip(f"/proc/meminfo has no {key}: a kernel without CMA")
    return int(found[1]) // 1024


class Cma(_Rk3588):
    """The contiguous memory pool is too small, or used up."""

    id = "rk-cma"
    title = "contiguous memory (CMA)"
    cause = (
        "The NPU's buffers come from the contiguous pool; gigabytes of free ordinary memory do not help when it is "
        "small or used up (rknn_init failed (-1), DMA_BUF_IOCTL_ALLOC failed)."
    )
    fixes = (_COMPACT, _BOOT_CMA)
    reference = "guide 004, part 2"

    def _examine(self, case: Case) -> Outcome:
        total, free = _meminfo_mb(case, "CmaTotal"), _meminfo_mb(case, "CmaFree")
        wanted = case.limits.min_cma_mb
        text = f"{total} MB, {free} MB of them free, wanted {wanted}"
        if total < wanted:
            return fail(text)
        return warn(text) if free < wanted else ok(text)


class BootSetting(_Rk3588):
    """The pool's size is not set for the next boot, or not yet in force."""

    id = "rk-cma-boot"
    title = "cma= in armbianEnv.txt"
    cause = "Memory fragments with time, and compaction may not free large blocks: the pool must be reserved at boot."
    fixes = (_BOOT_CMA,)
    reference = "guide 004, known limits"

    def _examine(self, case: Case) -> Outcome:
        found = re.search(r"\bcma=(\d+)M\b", case.system.text("/boot/armbianEnv.txt"))
        total, wanted = _meminfo_mb(case, "CmaTotal"), case.limits.min_cma_mb
        if found and int(found[1]) > total:
            return warn(f"cma={found[1]}M is set, {total} MB are in force: reboot")
        if not found and total < wanted:
            return warn(f"no cma=, and the pool has {total} MB")
        return ok(f"cma={found[1]}M" if found else f"no cma=, and the pool has {total} MB all the same")


class Memlock(_Rk3588):
    """The process may lock too little memory."""

    id = "rk-memlock"
    title = "locked memory (ulimit -l)"
    cause = "The runtime locks its buffers; the limit of the shell or service is below their size."
    fixes = (_MEMLOCK, _UNIT)
    reference = "guide 004, part 2"

    def _examine(self, case: Case) -> Outcome:
        found = re.search(r"^Max locked memory +(\S+)", case.system.text("/proc/self/limits"), re.MULTILINE)
        if not found:
            raise Skip("/proc/self/limits names no locked memory")
        if found[1] == "unlimited":
            return ok("unlimited")
        return warn(f"{int(found[1]) // 1024} kB")


class Driver(_Rk3588):
    """The NPU's kernel driver is too old."""

    id = "rk-driver"
    title = "rknpu driver version"
    cause = "RKLLM refuses older drivers, and before 0.9.6 the NPU cannot use more than 4 GB."
    fixes = (Fix(("cat /sys/kernel/debug/rknpu/version    # part of the kernel: install a newer kernel image",)),)
    reference = "guide 004, pinned versions; airockchip/rknn-llm issue 97"

    def _examine(self, case: Case) -> Outcome:
        texts = (case.system.find(name) for name in ("/sys/kernel/debug/rknpu/version", "/proc/rknpu/version"))
        found = re.search(r"v?(\d+\.\d+\.\d+)", next(filter(None, texts), ""))
        found = found or re.search(r"Initialized rknpu (\d+\.\d+\.\d+)", case.system.log)
        if not found:
            raise Skip("no rknpu driver tells its version (debugfs needs root)")
        text = f"{found[1]}, needed {case.limits.tested.rknpu}"
        return fail(text) if version(found[1]) < version(case.limits.tested.rknpu) else ok(text)


class Runtime(_Rk3588):
    """The RKLLM runtime is older than the tested version."""

    id = "rk-runtime"
    title = "RKLLM runtime version"
    cause = "Models converted with a newer toolkit do not load in an older runtime."
    fixes = (Fix(("sudo cp rknn-llm/rkllm-runtime/Linux/librkllm_api/aarch64/librkllmrt.so /usr/lib/",)),)
    reference = "guide 004, pinned versions"

    def _examine(self, case: Case) -> Outcome:
        found = re.findall(r"rkllm-runtime version: (\d+\.\d+\.\d+)", case.system.log)
        if not found:
            raise Skip("no rkllm start in the log")
        text = f"{found[-1]}, tested {case.limits.tested.rkllm}"
        return warn(text) if version(found[-1]) < version(case.limits.tested.rkllm) else ok(text)


class Errors(_Rk3588):
    """The NPU failed to get memory."""

    id = "rk-errors"
    title = "NPU errors in the log"
    cause = "An allocation failed: locked memory is limited, or no contiguous block was left."
    fixes = (_MEMLOCK, _COMPACT, _BOOT_CMA)
    reference = "guide 004, table 1"

    def _examine(self, case: Case) -> Outcome:
        pattern = r"^.*(?:rknn_init failed|DMA_BUF_IOCTL_ALLOC|failed to malloc npu memory).*$"
        found = re.findall(pattern, case.system.log, re.MULTILINE | re.IGNORECASE)
        return fail(found[-1].strip()) if found else ok("none")


class Fragmentation(_Rk3588):
    """No large block of memory is free."""

    id = "rk-fragmentation"
    title = "free memory in large blocks"
    cause = "After a long run the free memory is in small pieces."
    fixes = (_COMPACT, _BOOT_CMA)
    reference = "guide 004, known limits; Linux, filesystems/proc (buddyinfo)"

    def _examine(self, case: Case) -> Outcome:
        order = case.limits.large_block_order
        rows = re.findall(r"zone +(\S+) +([\d ]+)$", case.system.text("/proc/buddyinfo"), re.MULTILINE)
        if not rows:
            raise Skip("/proc/buddyinfo lists no zone")
        large = sum(sum(map(int, counts.split()[order:])) for _, counts in rows)
        text = f"{large} free blocks of order {order} and above"
        return ok(text) if large else warn(text)


CHECKS: tuple[Check, ...] = (
    *(Cma(), BootSetting(), Memlock(), Driver()),
    *(Runtime(), Errors(), Fragmentation()),
)
