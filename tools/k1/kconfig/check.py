"""What Kconfig would do with each line of a defconfig or fragment, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import kconfiglib
from kconfiglib import AND, BOOL, HEX, INT, OR, STRING, TRISTATE, Kconfig, Symbol

from k1.errors import K1Error
from k1.kconfig import tree
from k1.kconfig.settings import Setting, parse
from k1.typedtoml import near, read_text, shown

Fault = Literal["malformed", "unknown", "type", "dropped", "legacy", "duplicate", "repeated"]
# What does not change the result: a line that says again what stands there already.
HARMLESS: frozenset[Fault] = frozenset({"repeated"})

TYPES = {BOOL: "bool", TRISTATE: "tristate", STRING: "string", INT: "int", HEX: "hex"}
_FORMS = {
    "bool": "y or n",
    "tristate": "y, m or n",
    "string": 'a text in "quotes"',
    "int": "a whole number",
    "hex": "a number such as 0x1f",
}


@dataclass(frozen=True)
class Finding:
    """One line that Kconfig will not follow, or not as meant."""

    file: str
    line: int
    symbol: str
    fault: Fault
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {f'{self.symbol}: ' if self.symbol else ''}{self.text}"


def check(
    files: Sequence[Path],
    source: Path,
    *,
    externals: Sequence[Path] = (),
    base: Path | None = None,
    allnoconfig: bool = False,
    arch: str = "riscv",
) -> list[Finding]:
    """Check the files, of which later ones go on top of former ones, against the tree at `source`.

    base: a defconfig under them that is not checked itself.
    allnoconfig: what no file names is off, instead of at its default.
    """
    parsed = {path: parse(read_text(path)) for path in files}
    kconfig = tree.read(source, externals=externals, arch=arch)
    with tree.deep():
        if allnoconfig:
            _turn_off(kconfig)
        for path in [*([base] if base else []), *files]:
            _load(kconfig, path)
        found = []
        overruled: set[str] = set()
        for path in reversed(files):  # what a later file sets again is judged there
            settings, odd = parsed[path]
            found += [*strange(odd, shown(path)), *repeated(settings, shown(path))]
            last = {setting.symbol: setting for setting in settings if setting.symbol not in overruled}
            found += [finding for setting in last.values() for finding in _judge(setting, kconfig, shown(path))]
            overruled.update(last)
    order = [shown(path) for path in files]
    return sorted(found, key=lambda finding: (order.index(finding.file), finding.line))


def form_problem(type_: str, value: str) -> str:
    """What is wrong with a value for a symbol of that type; empty when it has the right form."""
    good = {
        "bool": value in ("y", "n"),
        "tristate": value in ("y", "m", "n"),
        "string": len(value) >= 2 and value[0] == value[-1] == '"',
        "int": value.lstrip("-").isdecimal(),
        "hex": _is_hex(value),
    }[type_]
    return "" if good else f"is a {type_}, got {value}; allowed: {_FORMS[type_]}"


def repeated(settings: Sequence[Setting], file: str) -> Iterator[Finding]:
    """The lines whose symbol has a line before them: Kconfig keeps the last."""
    first: dict[str, Setting] = {}
    for setting in settings:
        before = first.setdefault(setting.symbol, setting)
        if before is setting:
            continue
        same = before.value == setting.value
        text = f"stands on line {before.line} too" + ("" if same else f", with {before.value}; this line wins")
        yield Finding(file, setting.line, setting.symbol, "repeated" if same else "duplicate", text)


def strange(lines: Sequence[int], file: str) -> Iterator[Finding]:
    """Findings for lines that Kconfig does not understand, and skips."""
    for line in lines:
        yield Finding(file, line, "", "malformed", 'no setting; allowed: SYMBOL=value or "# SYMBOL is not set"')


def _is_hex(value: str) -> bool:
    try:
        int(value, 16)
    except ValueError:
        return False
    return True


def _turn_off(kconfig: Kconfig) -> None:
    for symbol in kconfig.unique_defined_syms:
        if symbol.orig_type in (BOOL, TRISTATE):
            symbol.set_value("y" if symbol.is_allnoconfig_y else "n")


def _load(kconfig: Kconfig, path: Path) -> None:
    try:
        kconfig.load_config(str(path), replace=False)
    except OSError as error:
        raise K1Error(f"{shown(path)}: {error.strerror}", hint="give a defconfig or fragment") from error


def _judge(setting: Setting, kconfig: Kconfig, file: str) -> Iterator[Finding]:
    """The finding about a line, if there is one."""
    if found := _fault(setting, kconfig):
        yield Finding(file, setting.line, setting.symbol, *found)


def _fault(setting: Setting, kconfig: Kconfig) -> tuple[Fault, str] | None:
    name = setting.symbol.removeprefix(kconfig.config_prefix)
    symbol = kconfig.syms.get(name)
    if not setting.symbol.startswith(kconfig.config_prefix) or symbol is None or not symbol.nodes:
        known = (f"{kconfig.config_prefix}{other.name}" for other in kconfig.unique_defined_syms)
        return "unknown", "; ".join(filter(None, ("no such symbol", near(setting.symbol, known))))
    type_ = TYPES[symbol.orig_type]
    if problem := form_problem(type_, setting.value):
        return "type", problem
    if is_legacy(symbol) and setting.value not in ("n", '""'):
        return "legacy", f"was removed: {_prompt(symbol)}"
    got = symbol.str_value
    written = f'"{kconfiglib.escape(got)}"' if type_ == "string" else got
    if _plain(type_, setting.value) != _plain(type_, written):
        return "dropped", f"asked {setting.value}, got {got or 'nothing'}: {_reason(symbol, setting.value)}"
    return None


def is_legacy(symbol: Symbol) -> bool:
    """Whether Buildroot keeps the symbol only to tell what became of it."""
    return all(node.filename.endswith("Config.in.legacy") for node in symbol.nodes)


def _prompt(symbol: Symbol) -> str:
    return next((node.prompt[0] for node in symbol.nodes if node.prompt), "no longer there")


def _plain(type_: str, value: str) -> str | int:
    if type_ == "int" and value:
        return int(value)
    return int(value, 16) if type_ == "hex" and value else value


def _reason(symbol: Symbol, asked: str) -> str:
    """Why the symbol has not the value that was asked for."""
    prompts = [node.prompt for node in symbol.nodes if node.prompt]
    if not prompts:
        return f"has no prompt, so no file can set it{_selectors(symbol)}"
    if symbol.visibility == 0:
        unmet = [_text(term) for _, condition in prompts for term in _terms(condition, AND) if _is_n(term)]
        return f"needs {' and '.join(f'{term}, which is n' for term in dict.fromkeys(unmet))}"
    if symbol.choice and symbol.choice.selection is not symbol:
        chosen = symbol.choice.selection
        return f"only one of its choice can be y, and that is {chosen.name if chosen else 'none'}"
    if asked == "n" or symbol.orig_type == TRISTATE:
        return f"{_selectors(symbol).removeprefix('; ') or 'its dependencies allow no more'}"
    limits = [f"{low.name} to {high.name}" for low, high, when in symbol.ranges if not _is_n(when)]
    return f"out of range, {' or '.join(limits)}" if limits else "another line decides it"


def _selectors(symbol: Symbol) -> str:
    active = [_text(term) for term in _terms(symbol.rev_dep, OR) if not _is_n(term)]
    return f"; selected by {', '.join(active)}" if active else ""


def _text(expression: object) -> str:
    """An expression as Kconfig files write it, without the choices that a symbol may be part of."""
    return str(kconfiglib.expr_str(expression)).replace(" && <choice>", "")


def _terms(expression: object, operator: int) -> list[object]:
    return list(kconfiglib.split_expr(expression, operator))


def _is_n(expression: object) -> bool:
    return int(kconfiglib.expr_value(expression)) == 0
