"""All checks, and how they are asked."""

from __future__ import annotations

from k1.doctor import fleet, hailo, hybrid, k1node, rk3588
from k1.doctor.check import Case, Check, Finding

TOPICS = {"hybrid": hybrid.CHECKS, "hailo": hailo.CHECKS, "rk3588": rk3588.CHECKS, "k1": k1node.CHECKS}
CHECKS: tuple[Check, ...] = tuple(check for checks in TOPICS.values() for check in checks)


def examine(cases: dict[str, Case]) -> list[Finding]:
    """Ask all checks of every machine (name → case), and compare the machines when there are several."""
    findings = [question.run(case, name) for name, case in cases.items() for question in CHECKS]
    return findings + (fleet.compare(cases) if len(cases) > 1 else [])
