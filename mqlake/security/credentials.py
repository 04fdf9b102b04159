"""Users that may log in: a file of verifiers, from which no password can be read back.

One line a user, `name:SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>` (base64; the
verifier as PostgreSQL writes it), or
`name:$argon2id$v=19$m=<KiB>,t=<passes>,p=<lanes>$<salt>$<hash>`, of a user who then has no SCRAM
(`mqlake.security.argon2_verifiers`). Empty lines and lines that begin with
`#` say nothing. The line
`unknown-users:<base64>` holds a random secret: it makes the salts that unknown users are shown, so
that they look like known ones, at every gateway and after every restart.
"""

import base64
import binascii
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from mqlake.durable import sync
from mqlake.errors import MqlakeError
from mqlake.security import argon2_verifiers
from mqlake.security.argon2_verifiers import (
    DEFAULT_WORK,
    Argon2Error,
    Argon2Verifier,
    argon2_verifier,
)
from mqlake.security.saslprep import UnpreparableText, prepare

DEFAULT_ITERATIONS: Final = 15_000
"""RFC 7677, 4: the work of about 0.1 s; some 10 ms of one core nowadays."""
MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 10_000_000
SALT_BYTES: Final = 16
KEY_BYTES: Final = 32

_SECRET_NAME: Final = "unknown-users"  # noqa: S105 - a name
_BASE64: Final = r"[A-Za-z0-9+/]+={0,2}"
_VERIFIER_PATTERN: Final = (
    rf"SCRAM-SHA-256\$(?P<iterations>[0-9]{{1,8}}):(?P<salt>{_BASE64})"
    rf"\$(?P<stored_key>{_BASE64}):(?P<server_key>{_BASE64})"
)
_VERIFIER: Final = re.compile(_VERIFIER_PATTERN)
_ARGON2_VERIFIER: Final = re.compile(argon2_verifiers.PATTERN)
# The name is greedy: it may hold a colon.
_USER: Final = re.compile(rf"(?P<name>.+):(?:{_VERIFIER_PATTERN}|{argon2_verifiers.PATTERN})")


class CredentialsError(MqlakeError):
    """The credentials file cannot be used, or not as asked."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """Data by which a server checks a user's password (RFC 5802, 3); repr shows none of it."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"Verifier(iterations={self.iterations})"

    def __str__(self) -> str:
        """Write it as it stands in the file."""
        salt, stored_key, server_key = (
            base64.b64encode(part).decode()
            for part in (self.salt, self.stored_key, self.server_key)
        )
        return f"SCRAM-SHA-256${self.iterations}:{salt}${stored_key}:{server_key}"

    def accepts(self, password: bytes) -> bool:
        """Tell whether a prepared password is the user's.

        Cost: `iterations` rounds of HMAC, without the interpreter's lock.
        """
        salted = hashlib.pbkdf2_hmac("sha256", password, self.salt, self.iterations)
        return hmac.compare_digest(stored_key_of(client_key_of(salted)), self.stored_key)


def client_key_of(salted_password: bytes) -> bytes:
    return hmac.digest(salted_password, b"Client Key", "sha256")


def stored_key_of(client_key: bytes) -> bytes:
    return hashlib.sha256(client_key).digest()


def server_key_of(salted_password: bytes) -> bytes:
    return hmac.digest(salted_password, b"Server Key", "sha256")


def make_verifier(
    password: str, *, iterations: int = DEFAULT_ITERATIONS, salt: bytes | None = None
) -> Verifier:
    """Make the verifier of a password, with a new salt unless one is given.

    Raises:
        UnpreparableText: The password is empty, too long, or holds characters that SASLprep
            forbids.
    """
    salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
    salted = hashlib.pbkdf2_hmac("sha256", prepare(password, "password").encode(), salt, iterations)
    return Verifier(salt, iterations, stored_key_of(client_key_of(salted)), server_key_of(salted))


def read_verifier(text: str) -> Verifier:
    """Undo `str` of a verifier.

    Raises:
        CredentialsError: It is of another form.
    """
    found = _VERIFIER.fullmatch(text)
    if found is None:
        raise CredentialsError(
            "expected SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>"
        )
    return _verifier(found)


PasswordVerifier: TypeAlias = Verifier | Argon2Verifier


def read_password_verifier(text: str) -> PasswordVerifier:
    """Undo `str` of a verifier of either kind.

    Raises:
        CredentialsError: It is of another form; never shows its content.
    """
    found = _ARGON2_VERIFIER.fullmatch(text)
    if found is None:
        return read_verifier(text)
    try:
        return argon2_verifier(found)
    except Argon2Error as exc:
        raise CredentialsError(str(exc)) from exc


_Value = TypeVar("_Value")


class Credentials:
    """The users of a file, by their prepared name.

    Args:
        verifiers: Verifier of each user, by prepared name.
        secret: Secret of the line `unknown-users`.
    """

    def __init__(self, verifiers: Mapping[str, PasswordVerifier], secret: bytes) -> None:
        self._verifiers = verifiers
        self._secret = secret
        scram = [one for one in verifiers.values() if isinstance(one, Verifier)]
        argon2 = [one for one in verifiers.values() if isinstance(one, Argon2Verifier)]
        # An unknown user costs as much as most users.
        self._usual_iterations = _most([one.iterations for one in scram], DEFAULT_ITERATIONS)
        self._usual_work = (
            _most([one.work for one in argon2], DEFAULT_WORK) if len(argon2) > len(scram) else None
        )

    def __len__(self) -> int:
        return len(self._verifiers)

    def __contains__(self, username: object) -> bool:
        return username in self._verifiers

    def __iter__(self) -> Iterator[str]:
        return iter(self._verifiers)

    def find(self, username: str) -> PasswordVerifier | None:
        """Return a user's verifier; None: there is no such user."""
        return self._verifiers.get(username)

    def verifier_of(self, username: str) -> PasswordVerifier:
        """Return a user's verifier; for an unknown user one that looks like it and fits nothing."""
        # Made for known users too: looking one up takes the same time.
        unknown = self._unknown(username)
        work = self._usual_work
        usual = unknown if work is None else Argon2Verifier(work, unknown.salt, unknown.stored_key)
        return self._verifiers.get(username, usual)

    def scram_verifier_of(self, username: str) -> Verifier:
        """Return a user's verifier; a user without one for SCRAM counts as unknown."""
        unknown = self._unknown(username)
        verifier = self._verifiers.get(username)
        return verifier if isinstance(verifier, Verifier) else unknown

    def _unknown(self, username: str) -> Verifier:
        salt = hmac.digest(self._secret, username.encode(), "sha256")[:SALT_BYTES]
        keys = secrets.token_bytes(2 * KEY_BYTES)
        return Verifier(salt, self._usual_iterations, keys[:KEY_BYTES], keys[KEY_BYTES:])


def read_credentials(path: Path) -> Credentials:
    """Read a credentials file.

    Raises:
        CredentialsError: It cannot be read, others than its owner can, or a line is not as
            described above; with the line's number, and never with its content.
    """
    verifiers: dict[str, PasswordVerifier] = {}
    secret = b""
    for number, line in enumerate(_read_lines(path), start=1):
        try:
            if line.startswith(f"{_SECRET_NAME}:") and _USER.fullmatch(line) is None:
                secret = _decode(line.partition(":")[2], "secret", KEY_BYTES)
            elif (user := _parse(line)) is not None:
                name, verifier = user
                if name in verifiers:
                    raise CredentialsError("the user is in the file already")
                verifiers[name] = verifier
        except (CredentialsError, Argon2Error, UnpreparableText) as exc:
            raise CredentialsError(f"credentials file {path}, line {number}: {exc}") from exc
    return Credentials(verifiers, secret or secrets.token_bytes(KEY_BYTES))


def set_user(path: Path, username: str, verifier: PasswordVerifier) -> bool:
    """Add a user or change an existing one's password; tell whether the user is new.

    The file is made when there is none, and replaced as a whole: no reader sees a part of it.

    Raises:
        CredentialsError: The file cannot be used, or the name is not one that a line can hold.
        UnpreparableText: SASLprep forbids the name.
    """
    name = prepare(username, "user name")
    if name.startswith("#"):
        raise CredentialsError("a user name cannot begin with #")
    entry = f"{name}:{verifier}"

    def change(lines: list[str]) -> list[str]:
        changed = [entry if _name_in(line) == name else line for line in lines]
        return changed if entry in changed else [*changed, entry]

    before, after = _rewrite(path, change, make=True)
    return before < after


def remove_user(path: Path, username: str) -> None:
    """Remove a user.

    Raises:
        CredentialsError: The file cannot be used, or has no such user.
        UnpreparableText: SASLprep forbids the name.
    """
    name = prepare(username, "user name")

    def change(lines: list[str]) -> list[str]:
        changed = [line for line in lines if _name_in(line) != name]
        if changed == lines:
            raise CredentialsError(f"no user {name!r} in {path}")
        return changed

    _rewrite(path, change)


def _most(found: Sequence[_Value], default: _Value) -> _Value:
    counted = Counter(found)
    return max(counted, key=counted.__getitem__, default=default)


def _parse(line: str) -> tuple[str, PasswordVerifier] | None:
    if not line or line.startswith("#"):
        return None
    found = _USER.fullmatch(line)
    if found is None:
        raise CredentialsError(
            "expected <name>:SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key> or "
            "<name>:$argon2id$v=19$m=<KiB>,t=<passes>,p=<lanes>$<salt>$<hash>"
        )
    verifier = _verifier(found) if found["iterations"] else argon2_verifier(found)
    name = prepare(found["name"], "user name")
    if name != found["name"]:
        raise CredentialsError("the user name is not in the form that SASLprep gives it")
    return name, verifier


def _verifier(found: re.Match[str]) -> Verifier:
    iterations = int(found["iterations"])
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise CredentialsError(
            f"{iterations} iterations, expected {MIN_ITERATIONS} to {MAX_ITERATIONS}"
        )
    return Verifier(
        _decode(found["salt"], "salt"),
        iterations,
        _decode(found["stored_key"], "stored key", KEY_BYTES),
        _decode(found["server_key"], "server key", KEY_BYTES),
    )


def _decode(text: str, what: str, size: int | None = None) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise CredentialsError(f"the {what} is not base64") from exc
    if size is not None and len(data) != size:
        raise CredentialsError(f"the {what} has {len(data)} bytes, expected {size}")
    return data


def _name_in(line: str) -> str | None:
    found = None if line.startswith("#") else _USER.fullmatch(line)
    return None if found is None else found["name"]


def _read_lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            if mode & 0o077:
                raise CredentialsError(
                    f"credentials file {path} is open to others (mode {mode:04o}): "
                    f"run chmod 600 {path}"
                )
            # Not splitlines(): a name may hold characters that it takes for the end of a line.
            return [line.removesuffix("\r") for line in file.read().decode().split("\n")]
    except UnicodeDecodeError as exc:
        raise CredentialsError(f"credentials file {path} is not UTF-8 text") from exc
    except OSError as exc:
        raise CredentialsError(f"credentials file {path}: {exc.strerror}") from exc


def _rewrite(
    path: Path, change: Callable[[list[str]], list[str]], *, make: bool = False
) -> tuple[int, int]:
    """Replace the lines by the changed ones; return how many users there were and are."""
    path = path.resolve()  # a link stays a link
    with _locked(path.parent):
        if make and not path.exists():
            secret = base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()
            lines, before = [f"{_SECRET_NAME}:{secret}"], 0
        else:
            before = len(read_credentials(path))
            lines = _read_lines(path)
            if not lines[-1]:
                lines.pop()  # empty, after the end of the last line
        lines = change(lines)
        _write(path, "".join(f"{line}\n" for line in lines))
    return before, sum(_name_in(line) is not None for line in lines)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time change files of a folder; the file itself is replaced."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as exc:
        raise CredentialsError(f"folder {folder}: {exc.strerror}; make it first") from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, text: str) -> None:
    try:
        # Made with mode 0600.
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as exc:
        raise CredentialsError(f"credentials file {path}: {exc.strerror}") from exc
    try:
        with open(descriptor, "wb") as file:
            if path.exists():
                _keep_owner(path, file.fileno())
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
        sync(path.parent)
    except OSError as exc:
        Path(temporary).unlink(missing_ok=True)
        raise CredentialsError(f"credentials file {path}: {exc.strerror}") from exc


def _keep_owner(path: Path, descriptor: int) -> None:
    """Give a new file the owner of the old one: root may edit a file that the gateway reads."""
    old, new = path.stat(), os.fstat(descriptor)
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        os.fchown(descriptor, old.st_uid, old.st_gid)
