"""Steps run when something they depend on changed, and only then."""

from collections.abc import Callable
from pathlib import Path

import pytest

from k1 import output
from k1.errors import K1Error
from k1.steps import Plan, Step


class Project:
    """Two steps, the second on the first's output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inputs = {"kernel": "6.1", "overlay": "a"}
        self.ran: list[str] = []

    def plan(self) -> Plan:
        linux = Step(
            "linux", {"source": self.inputs["kernel"]}, (self.folder / "Image",), self._builder("linux", "Image")
        )
        root = Step(
            "rootfs",
            {"overlay": self.inputs["overlay"]},
            (self.folder / "root",),
            self._builder("rootfs", "root"),
            needs=("linux",),
        )
        other = Step("opensbi", {}, (self.folder / "fw",), self._builder("opensbi", "fw"))
        return Plan([linux, root, other], self.folder / "steps")

    def _builder(self, name: str, made: str) -> Callable[[output.Task], None]:
        def build(_task: output.Task) -> None:
            self.ran.append(name)
            (self.folder / made).write_text(f"{self.inputs}")

        return build

    def run(self, upto: str | None = None, *, force: bool = False) -> list[str]:
        self.ran.clear()
        self.plan().run(upto, force=force)
        return list(self.ran)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_nothing_runs_twice(project: Project) -> None:
    assert project.run() == ["linux", "rootfs", "opensbi"]
    assert project.run() == []


def test_a_changed_overlay_does_not_rebuild_the_kernel(project: Project) -> None:
    project.run()
    project.inputs["overlay"] = "b"
    reasons = {state.step.name: state.reason for state in project.plan().states()}
    assert reasons == {"linux": "", "rootfs": "changed: overlay", "opensbi": ""}
    assert project.run() == ["rootfs"]


def test_a_changed_kernel_rebuilds_what_needs_it(project: Project) -> None:
    project.run()
    project.inputs["kernel"] = "6.2"
    assert project.run() == ["linux", "rootfs"]


def test_a_touched_or_removed_output_is_built_again(project: Project) -> None:
    project.run()
    (project.folder / "Image").unlink()
    (project.folder / "root").write_text("edited by hand")
    assert project.run() == ["linux", "rootfs"]


def test_up_to_a_step_runs_only_what_it_needs(project: Project) -> None:
    assert project.run("rootfs") == ["linux", "rootfs"]
    assert project.run("rootfs", force=True) == ["rootfs"]


def test_a_failed_step_runs_again_and_keeps_the_finished_ones(project: Project) -> None:
    (project.folder / "root").mkdir()  # writing the output fails
    with pytest.raises(IsADirectoryError):
        project.run()
    (project.folder / "root").rmdir()
    assert project.run() == ["rootfs", "opensbi"]


def test_a_broken_record_means_not_built(project: Project) -> None:
    project.run()
    (project.folder / "steps" / "linux.json").write_text("{half")
    assert next(project.plan().states()).reason == "not built yet"


def test_unknown_step_lists_the_known_ones(project: Project) -> None:
    with pytest.raises(K1Error, match="no step named kernel") as caught:
        project.run("kernel")
    assert "linux, rootfs, opensbi" in caught.value.hint
