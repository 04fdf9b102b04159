"""The one reader of `mqlake.rules`: from a record's key and value to a fact.

`docs/records.md` says which records there are. A key alone tells which fact it is; the value is
decoded by `Fact.content`, so that no reader pays for facts of other kinds.
"""

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Final, TypeVar

from mqlake.errors import InvalidRecord
from mqlake.records.rules import DECIDED_KEY, Kind

RuleKey = tuple[str, str]
"""Tenant and rule."""

_Key = TypeVar("_Key")
_Content = TypeVar("_Content")

_NAMED: Final = {
    str(kind): kind
    for kind in (Kind.ACTIVATION, Kind.DEFINITION, Kind.RERUN, Kind.REQUEST, Kind.STATE)
}
_NUMBERED: Final = {str(kind): kind for kind in (Kind.VERSION, Kind.SCHEMA)}
_MOST_DIGITS: Final = 18  # as many as fit in 64 bits


@dataclass(slots=True)
class Fact:
    """Content of a record; without a value, its subject is deleted."""

    kind: Kind
    name: tuple[str, str]
    """Tenant, and rule, schema or reference table; empty for `Kind.DECIDED`."""
    value: bytes | None
    version: int = 0
    """Version; of a schema and of `Kind.VERSION` only."""

    def content(self, decode: Callable[[bytes], _Content]) -> _Content | None:
        """Return the decoded value; None: it is deleted.

        Raises:
            InvalidRecord: It cannot be decoded.
        """
        if self.value is None:
            return None
        try:
            return decode(self.value)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
            raise InvalidRecord(f"{self.kind.name.lower()} is malformed: {exc!r}") from exc


def read_fact(key: bytes | None, value: bytes | None, *, is_ours: bool = True) -> Fact | None:
    """Read a record of `mqlake.rules`; None for one whose key is of no known form.

    Args:
        key: Key of the record.
        value: None is a tombstone.
        is_ours: False: an activation is not signed as ours are.
    """
    letter, *names = (key or b"").decode(errors="replace").split("/")
    match names:
        case [tenant, name]:
            kind = _NAMED.get(letter)
            if kind is Kind.ACTIVATION and not is_ours:
                kind = Kind.UNSIGNED
            return None if kind is None else Fact(kind, (tenant, name), value)
        case [tenant, name, number] if number.isdecimal() and len(number) <= _MOST_DIGITS:
            kind = _NUMBERED.get(letter)
            return None if kind is None else Fact(kind, (tenant, name), value, int(number))
    return Fact(Kind.DECIDED, ("", ""), value) if key == DECIDED_KEY else None


def keep(known: MutableMapping[_Key, _Content], key: _Key, content: _Content | None) -> None:
    """Remember the last that was said of a key; forget one that is deleted."""
    if content is None:
        known.pop(key, None)
    else:
        known[key] = content
