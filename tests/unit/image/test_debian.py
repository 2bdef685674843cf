"""The debian builder's plan: what is asked of the mirror, and what makes a step run again."""

from pathlib import Path

import pytest

from k1 import board as boards
from k1 import files, output, paths, sources
from k1.errors import K1Error
from k1.image import debian
from k1.image.context import Context
from k1.steps import Plan, Step

PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3eHl6MDEy me@desk\n"


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> debian.Image:
    monkeypatch.setenv("K1_BUILD", str(tmp_path / "build"))
    monkeypatch.setenv("K1_CACHE", str(tmp_path / "cache"))
    keys = tmp_path / "id.pub"
    keys.write_text(PUBLIC)
    return debian.Image(boards.load("virt"), debian.Options(jobs=1, authorized_keys=keys))


def fetched(image: debian.Image, version: str = "1") -> list[sources.Source]:
    """What a fetch would bring, with one small file each."""
    found = []
    for wanted in image.wanted():
        file = sources.SourceFile(filename=f"{wanted.package}.deb", size=3, sha256=files.digest(wanted.name + version))
        path = file.path(image.cache)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("deb")
        found.append(
            sources.Source(
                name=wanted.name,
                kind=wanted.kind,
                package=wanted.package,
                architecture=wanted.architecture,
                version=version,
                suite=wanted.suites[0],
                files=(file,),
            )
        )
    return found


def keys_of(image: debian.Image, found: list[sources.Source]) -> dict[str, str]:
    return {state.step.name: state.key for state in image.plan(image.context(found)).states()}


def test_firmware_kernel_and_root_packages_are_wanted(image: debian.Image) -> None:
    wanted = {w.name: w for w in image.wanted()}
    assert {"opensbi", "uboot", "linux", "root/busybox-static"} <= wanted.keys()
    assert wanted["root/busybox-static"].architecture == "riscv64"


def test_step_names_of_the_command_line_are_those_of_the_plan(image: debian.Image) -> None:
    assert tuple(keys_of(image, fetched(image))) == debian.STEPS


def test_known_sources_need_no_mirror_until_a_file_is_gone(image: debian.Image) -> None:
    assert image.known_sources is None
    found = fetched(image)
    sources.save(image.record, found)
    again = debian.Image(image.board, image.options)
    assert {source.name for source in again.fetch()} == {source.name for source in found}
    found[0].files[0].path(image.cache).write_text("cut")
    found[1].files[0].path(image.cache).unlink()
    assert debian.Image(image.board, image.options).known_sources is None


def test_nothing_changes_between_a_fetch_and_what_is_known_of_it(
    image: debian.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {source.name: source for source in fetched(image)}
    monkeypatch.setattr(sources, "fetch", lambda wanted, **_options: [found[w.name] for w in wanted])
    first = keys_of(image, image.fetch())
    again = debian.Image(image.board, image.options)
    assert again.known_sources is not None
    assert keys_of(again, again.fetch()) == first


def test_images_that_do_not_belong_together_have_no_manifest(
    image: debian.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = sorted(fetched(image), key=lambda s: s.name)
    sources.save(image.record, found)
    (image.build / "images").mkdir(parents=True)
    manifest = image.build / "images" / "manifest.json"

    def make(name: str, *, fail: bool = False) -> Step:
        def build(_task: output.Task) -> None:
            if fail:
                raise KeyboardInterrupt
            (image.build / "images" / name).write_text(name)

        return Step(name, {}, (image.build / "images" / name,), build)

    steps = [make("Image"), make("sdcard.img", fail=True)]
    monkeypatch.setattr(image, "plan", lambda _ctx: Plan(steps, image.build / "steps"))
    manifest.write_text("of the build before")
    with pytest.raises(KeyboardInterrupt):
        image.run(None, force=False)
    assert not manifest.exists()
    steps[1] = make("sdcard.img")
    image.run("sdcard.img", force=False)
    assert not manifest.exists()
    image.run(None, force=False)
    assert "sdcard.img" in manifest.read_text()


def test_other_keys_change_the_root_but_not_the_kernel(image: debian.Image, tmp_path: Path) -> None:
    found = fetched(image)
    before = keys_of(image, found)
    image.options.authorized_keys.write_text(PUBLIC.replace("MDEy", "MDEz"))  # type: ignore[union-attr]
    after = keys_of(debian.Image(image.board, image.options), found)
    assert [name for name in before if before[name] != after[name]] == ["rootfs", "card"]


def test_a_new_kernel_package_changes_kernel_root_and_card(image: debian.Image) -> None:
    found = fetched(image)
    before = keys_of(image, found)
    newer = {s.name: s for s in fetched(image, "2")}
    after = keys_of(image, [newer["linux"] if s.name == "linux" else s for s in found])
    assert [name for name in before if before[name] != after[name]] == ["linux", "rootfs", "card"]


def test_work_moves_out_of_a_path_that_make_cannot_use(image: debian.Image, monkeypatch: pytest.MonkeyPatch) -> None:
    found = fetched(image)

    def work(build: Path) -> Path:
        image.build = build
        return image.context(found).work

    assert work(image.build) == image.build / "work"
    spaced = work(image.build.parent / "with a space")
    assert not paths.has_make_hostile_name(spaced)
    assert spaced.is_relative_to(image.cache)
    image.cache = Path("/nowhere/a cache")
    assert not paths.has_make_hostile_name(work(image.build.parent / "with a space"))


def test_clean_keeps_keys_and_labs_unless_all_is_asked_for(image: debian.Image) -> None:
    for name in ("images", "steps", "work", "ssh", "lab"):
        (image.build / name).mkdir(parents=True)
    debian.clean("virt", everything=False)
    assert sorted(p.name for p in image.build.iterdir()) == ["lab", "ssh"]
    (image.build / "work").mkdir()
    debian.clean("virt", everything=True)
    assert not image.build.exists()


def test_epoch_follows_the_environment(image: debian.Image, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx: Context = image.context(fetched(image))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1234")
    assert ctx.epoch == 1234
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(K1Error, match="SOURCE_DATE_EPOCH is no number of seconds: yesterday"):
        _ = ctx.epoch
