"""RISC-V ISA names such as `rv64gc_zba_zbb`."""

from __future__ import annotations

from k1.typedtoml import fault, near

_GENERAL = frozenset({"i", "m", "a", "f", "d", "zicsr", "zifencei"})
_LETTERS = "mafdqcbvh"
# Ratified unprivileged and common supervisor extensions, as compilers and device trees spell them.
_NAMES = """
    zicsr zifencei zicntr zihpm zihintpause zihintntl zicbom zicbop zicboz zicond zimop zmmul
    zaamo zabha zacas zalrsc zawrs ztso zfa zfh zfhmin zfbfmin zfinx zdinx zhinx zhinxmin
    zba zbb zbc zbs zbkb zbkc zbkx zk zkn zknd zkne zknh zkr zks zksed zksh zkt
    zca zcb zcd zcf zcmp zcmt zcmop zve32f zve32x zve64d zve64f zve64x
    zvl32b zvl64b zvl128b zvl256b zvl512b zvl1024b zvfh zvfhmin zvfbfmin zvfbfwma
    zvbb zvbc zvkb zvkg zvkn zvknc zvkned zvkng zvknha zvknhb zvks zvksc zvksed zvksg zvksh zvkt
    sscofpmf sstc svinval svnapot svpbmt
"""
EXTENSIONS = frozenset(_NAMES.split())


def extensions(isa: str) -> frozenset[str]:
    """Every extension an ISA name stands for, single letters included; `g` counts as what it stands for.

    Raises a `typedtoml.fault` for a name that is not canonical or an extension that is not known.
    """
    head, *names = isa.split("_")
    found = _base(head)
    for name in names:
        check_known(name)
        if names.count(name) > 1:
            raise fault(f"extension {name!r} is given twice", allowed="each extension once")
        found |= {name}
    return found


def check_known(name: str) -> str:
    """`name` if it is a known multi-letter extension, else a `typedtoml.fault` with the nearest names."""
    if name not in EXTENSIONS:
        guess = near(name, EXTENSIONS)
        names = guess or "ratified extensions in lower case, such as zba or zicsr"
        raise fault(f"unknown extension {name!r}", allowed=names)
    return name


def _base(head: str) -> frozenset[str]:
    base, letters = head[4:5], head[5:]
    if not head.startswith("rv64") or base not in {"i", "g"}:
        raise fault("not a 64-bit base", allowed="rv64i or rv64g, then letters, then _extensions, all in lower case")
    known = "".join(letter for letter in _LETTERS if base == "i" or letter not in _GENERAL)
    if letters != "".join(letter for letter in known if letter in letters):
        raise fault(f"letters {letters!r} after rv64{base}", allowed=f"letters of {known!r}, in this order, each once")
    return (_GENERAL if base == "g" else frozenset("i")) | set(letters)
