"""Argon2id verifiers of passwords (RFC 9106), as everybody writes them: `$argon2id$v=19$m=…`.

They cost an attacker who guesses memory as well as time, more than SCRAM's; but a user who has one
cannot log in by SCRAM, for which the server needs a key that this is not.
"""

import base64
import re
import secrets
from dataclasses import dataclass
from typing import Final, NamedTuple

from mqlake.errors import MqlakeError
from mqlake.security.saslprep import prepare

MIN_MEMORY_KIB: Final = 7 * 1024
"""The least that OWASP's Password Storage Cheat Sheet names."""
MAX_MEMORY_KIB: Final = 128 * 1024
"""Memory of one check; each thread of a gateway that checks passwords may take it at once."""
MAX_PASSES: Final = 20
MAX_LANES: Final = 16
SALT_BYTES: Final = 16
HASH_BYTES: Final = 32

PATTERN: Final = (
    r"\$argon2id\$v=19\$m=(?P<memory>[0-9]{1,7}),t=(?P<passes>[0-9]{1,4}),p=(?P<lanes>[0-9]{1,3})"
    r"\$(?P<argon2_salt>[A-Za-z0-9+/]{11,86})\$(?P<hash>[A-Za-z0-9+/]{22,86})"
)


class Argon2Error(MqlakeError):
    """An Argon2id verifier that cannot be used; never shows its content."""


class CheckWork(NamedTuple):
    """That a check costs."""

    memory_kib: int
    passes: int
    lanes: int


DEFAULT_WORK: Final = CheckWork(19 * 1024, 2, 1)
"""As OWASP recommends: some tens of milliseconds of one core, and 19 MiB."""


@dataclass(frozen=True, slots=True)
class Argon2Verifier:
    """Data by which a server checks a user's password; repr shows none of it."""

    work: CheckWork
    salt: bytes
    hash: bytes

    def __repr__(self) -> str:
        return f"Argon2Verifier(work={self.work})"

    def __str__(self) -> str:
        """Write it as it stands in the file."""
        memory, passes, lanes = self.work
        return (
            f"$argon2id$v=19$m={memory},t={passes},p={lanes}${_text(self.salt)}${_text(self.hash)}"
        )

    def accepts(self, password: bytes) -> bool:
        """Tell whether a prepared password is the user's.

        Cost: `work`, without the interpreter's lock.
        """
        return secrets.compare_digest(
            _hash(password, self.salt, self.work, len(self.hash)), self.hash
        )


def make_argon2_verifier(password: str, work: CheckWork = DEFAULT_WORK) -> Argon2Verifier:
    """Make the verifier of a password, with a new salt.

    Raises:
        UnpreparableText: The password is empty, too long, or holds characters that SASLprep
            forbids.
        Argon2Error: The work is less or more than is allowed.
    """
    _check(work)
    salt = secrets.token_bytes(SALT_BYTES)
    prepared = prepare(password, "password").encode()
    return Argon2Verifier(work, salt, _hash(prepared, salt, work, HASH_BYTES))


def argon2_verifier(found: re.Match[str]) -> Argon2Verifier:
    """Return the verifier of a match of `PATTERN`.

    Raises:
        Argon2Error: It is less or more work than is allowed, or not base64.
    """
    work = CheckWork(int(found["memory"]), int(found["passes"]), int(found["lanes"]))
    _check(work)
    return Argon2Verifier(work, _bytes(found["argon2_salt"]), _bytes(found["hash"]))


def _check(work: CheckWork) -> None:
    memory, passes, lanes = work
    if not MIN_MEMORY_KIB <= memory <= MAX_MEMORY_KIB:
        raise Argon2Error(f"m={memory} KiB, expected {MIN_MEMORY_KIB} to {MAX_MEMORY_KIB}")
    if not 1 <= passes <= MAX_PASSES or not 1 <= lanes <= MAX_LANES:
        raise Argon2Error(
            f"t={passes} and p={lanes}, expected 1 to {MAX_PASSES} and 1 to {MAX_LANES}"
        )


def _hash(password: bytes, salt: bytes, work: CheckWork, size: int) -> bytes:
    # Here, for the library is not where users only have SCRAM verifiers (the API).
    from argon2.low_level import Type, hash_secret_raw

    return hash_secret_raw(
        password, salt, work.passes, work.memory_kib, work.lanes, size, Type.ID, version=19
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError as exc:
        raise Argon2Error("salt or hash is not base64") from exc
