"""Checks that compare several nodes of the cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from typing import ClassVar

from k1.doctor import k1node
from k1.doctor.check import Case, Finding, Fix, Outcome, Verdict, fail, finding, ok, warn
from k1.doctor.system import Skip

_MASKED = ":00:00:00"


class Comparison(ABC):
    """A value that every node tells, and what it means when they differ."""

    id: ClassVar[str]
    title: ClassVar[str]
    cause: ClassVar[str]
    fixes: ClassVar[tuple[Fix, ...]]
    reference: ClassVar[str]

    @abstractmethod
    def _value(self, case: Case) -> str:
        """The node's value, or `Skip`."""

    def _judge(self, nodes: dict[str, list[str]]) -> Outcome:
        """The outcome for value → nodes that have it; by default all must have the same."""
        if len(nodes) == 1:
            return ok(f"the same on all: {next(iter(nodes))}")
        return fail(_listing(nodes))

    def run(self, cases: dict[str, Case]) -> Finding:
        """Compare the nodes (name → case); skipped when fewer than two tell their value."""
        nodes: dict[str, list[str]] = defaultdict(list)
        reasons: list[str] = []
        for name, case in cases.items():
            try:
                nodes[self._value(case)].append(name)
            except Skip as reason:
                reasons.append(f"{name}: {reason}")
        told = sum(map(len, nodes.values()))
        outcome = self._judge(nodes) if told > 1 else Outcome(Verdict.SKIP, "; ".join(reasons))
        return finding(self, "fleet", "several nodes", outcome, self.fixes)


def _listing(nodes: dict[str, list[str]]) -> str:
    return "; ".join(f"{value} on {', '.join(names)}" for value, names in nodes.items())


class Macs(Comparison):
    """Two nodes have one MAC."""

    id = "fleet-mac"
    title = "MACs differ"
    cause = "Two boards with one MAC take each other's frames; all leave the factory with the same."
    fixes = k1node.Mac.fixes
    reference = "reference 000, 5.1"

    def _value(self, case: Case) -> str:
        mac = k1node.attribute(case, "address")
        if mac.endswith(_MASKED):
            raise Skip("the capture masks the MAC")
        return mac

    def _judge(self, nodes: dict[str, list[str]]) -> Outcome:
        twice = {mac: names for mac, names in nodes.items() if len(names) > 1}
        return fail(_listing(twice)) if twice else ok(f"{len(nodes)} different ones")


class Mtus(Comparison):
    """MTUs differ."""

    id = "fleet-mtu"
    title = "one MTU"
    cause = "A frame larger than the receiver's MTU is dropped silently: connections open, and large messages hang."
    fixes = k1node.Mtu.fixes
    reference = "reference 000, 2.3"

    def _value(self, case: Case) -> str:
        return k1node.attribute(case, "mtu")


class Models(Comparison):
    """Model files differ."""

    id = "fleet-model"
    title = "one model file"
    cause = "Each node computes some layers of the same file; another file gives garbage, so nodes refuse each other."
    fixes = k1node.Model.fixes
    reference = "reference 000, 5.2 step 3"

    def _value(self, case: Case) -> str:
        model = k1node.inferd_setting(case.system, "model")
        if not model:
            raise Skip("inferd.conf names no model")
        return case.system.output("model-sha256", model=model).split(" ")[0]


class _Version(Comparison):
    cause = "Some nodes were upgraded and others not."
    fixes = (Fix(("k1 image && k1 deploy    # bring all nodes to one version",)),)
    reference = "docs/doctor.md"

    def _judge(self, nodes: dict[str, list[str]]) -> Outcome:
        outcome = super()._judge(nodes)
        return warn(outcome.evidence) if outcome.verdict is Verdict.FAIL else outcome


class Kernels(_Version):
    """Kernels differ."""

    id = "fleet-kernel"
    title = "one kernel"

    def _value(self, case: Case) -> str:
        return case.system.text("/proc/sys/kernel/osrelease")


class Programs(_Version):
    """k1-inferd differs."""

    id = "fleet-inferd"
    title = "one k1-inferd"

    def _value(self, case: Case) -> str:
        return case.system.output("inferd-version").strip()


COMPARISONS: tuple[Comparison, ...] = (Macs(), Mtus(), Models(), Kernels(), Programs())


def compare(cases: dict[str, Case]) -> list[Finding]:
    """Every comparison over the nodes."""
    return [comparison.run(cases) for comparison in COMPARISONS]
