"""The records of `mqlake.access`: users of the API. `docs/records.md` is this module in prose.

No record holds a secret: of keys and sessions there is a SHA-256 (their secrets are 256 random
bits, which cannot be guessed), of passwords a SCRAM verifier with its many rounds.
"""

import json
from dataclasses import asdict, dataclass
from typing import Final, Literal, get_args

from mqlake.errors import InvalidRecord
from mqlake.records.members import load, texts, to_dataclass
from mqlake.records.versions import RECORD_VERSION

Role = Literal["viewer", "editor", "admin"]
"""Each has the rights of those before it."""
ROLES: Final[tuple[Role, ...]] = get_args(Role)

SubjectKind = Literal["token", "key", "account"]
"""Credentials of a caller: the token in `<data-dir>/api-token`, a key, an account's password."""

AccessKind = Literal["key", "account", "session"]

TOKEN_NAME: Final = "api-token"  # noqa: S105 - a name
"""Name of a caller with the token in `<data-dir>/api-token`; no account has it."""
_KEY_PREFIX: Final = "key:"
"""No name of an account holds a colon."""

_LETTERS: Final[dict[AccessKind, str]] = {"key": "k", "account": "a", "session": "s"}
_KINDS: Final = {letter: kind for kind, letter in _LETTERS.items()}


@dataclass(slots=True, frozen=True)
class ApiKey:
    """Key `k/<id>`; made once and never changed."""

    role: Role
    description: str
    hash: str
    """SHA-256 of the secret, hexadecimal."""
    created_at: int
    """UTC epoch in milliseconds, as all times here."""
    created_by: str
    expires_at: int | None = None
    topic_filters: tuple[str, ...] | None = None
    """Topics that a caller with the key may read and publish; None: all."""
    tenants: tuple[str, ...] | None = None
    """Tenants that a caller with the key may access; None: all."""


@dataclass(slots=True, frozen=True)
class Account:
    """Key `a/<name>`: a person who logs in with a password."""

    role: Role
    verifier: str
    """As in a credentials file, see `mqlake.security.credentials`; empty: there is no password."""
    created_at: int
    created_by: str
    password_changed_at: int
    """Sessions that began before are over."""
    topic_filters: tuple[str, ...] | None = None
    """As of a key."""
    tenants: tuple[str, ...] | None = None
    """Tenants that it is for; None: all."""


@dataclass(slots=True, frozen=True)
class LoginSession:
    """Key `s/<id>`: a login to the API that has not ended."""

    subject_kind: SubjectKind
    subject: str
    """Identifier of the key, name of the account; of the token a keyed hash."""
    hash: str
    """SHA-256 of the secret in the cookie, hexadecimal."""
    created_at: int
    expires_at: int


AccessValue = ApiKey | Account | LoginSession
_CLASSES: Final[dict[AccessKind, type[AccessValue]]] = {
    "key": ApiKey,
    "account": Account,
    "session": LoginSession,
}


def key_name(key_id: str) -> str:
    """Return the name of a caller with a key."""
    return f"{_KEY_PREFIX}{key_id}"


def key_id_of(name: str) -> str:
    """Undo `key_name`; the name of an account stays as it is."""
    return name.removeprefix(_KEY_PREFIX)


def access_key(kind: AccessKind, name: str) -> bytes:
    return f"{_LETTERS[kind]}/{name}".encode()


def decode_access_key(data: bytes) -> tuple[AccessKind, str] | None:
    """Read a key of `mqlake.access`; None for one of another kind."""
    letter, separator, name = data.decode(errors="replace").partition("/")
    kind = _KINDS.get(letter)
    return None if kind is None or not separator or not name else (kind, name)


def encode_access(value: AccessValue) -> bytes:
    fields = {"v": RECORD_VERSION, **asdict(value)}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def decode_access(kind: AccessKind, data: bytes) -> AccessValue:
    """Undo `encode_access`; fields that we do not know are left out.

    Raises:
        InvalidRecord: It has another form or version.
    """
    found = load(data, kind)
    for name in ("topic_filters", "tenants"):
        if found.get(name) is not None:
            found[name] = tuple(texts(found, name))
    value = to_dataclass(_CLASSES[kind], found, kind)
    if not isinstance(value, LoginSession) and value.role not in ROLES:
        raise InvalidRecord(f"{kind} has the role {value.role!r}, expected one of {ROLES}")
    return value
