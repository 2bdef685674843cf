"""Who may log in to the boards: the user's own keys, or one made for this build folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from k1.errors import K1Error
from k1.run import run

_KEY = re.compile(r"^(?:[\w.@=,\"-]+ )?(?:ssh-|ecdsa-|sk-)[\w@.-]+ [A-Za-z0-9+/=]{16,}( .*)?$")
_HASH = re.compile(r"^\$[156y]\$[A-Za-z0-9./$=,]+$")


@dataclass(frozen=True)
class Logins:
    """Who may log in as root.

    authorized_keys: content of the file of that name.
    password_hash: crypt(3) hash for the serial console, or empty: no password works.
    """

    authorized_keys: str
    password_hash: str = ""

    def shadow(self, text: str) -> str:
        """An /etc/shadow with root's hash in it, where there is one."""
        if not self.password_hash:
            return text
        return re.sub(r"^root:[^:]*:", lambda _: f"root:{self.password_hash}:", text, flags=re.M)


def logins(build: Path, given: Path | None, password_hash: str) -> Logins:
    """The keys in `given`, else the public half of build/ssh/id_ed25519; a password only as a hash."""
    if password_hash and not _HASH.match(password_hash):
        raise K1Error("the root password must be given as a crypt hash", hint="make one with: openssl passwd -6")
    return Logins(_read(given or own_key(build).with_suffix(".pub")), password_hash)


def _read(source: Path) -> str:
    try:
        lines = [line for line in source.read_text().splitlines() if line.strip() and not line.startswith("#")]
    except (OSError, UnicodeDecodeError) as error:
        raise K1Error(
            f"{source}: cannot be read as public keys ({error})", hint="name a file like ~/.ssh/id_ed25519.pub"
        ) from error
    for number, line in enumerate(lines, 1):
        if not _KEY.match(line):
            raise K1Error(
                f"{source}, line {number}: not an SSH public key", hint="name the .pub file, not the private key"
            )
    if not lines:
        raise K1Error(f"{source}: holds no key", hint="name a file like ~/.ssh/id_ed25519.pub")
    return "".join(f"{line}\n" for line in lines)


def own_key(build: Path) -> Path:
    """Path of this build folder's private key, made at the first call."""
    key = build / "ssh" / "id_ed25519"
    if not key.with_suffix(".pub").is_file():
        key.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        key.unlink(missing_ok=True)
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "k1-build", "-f", key])
    return key
