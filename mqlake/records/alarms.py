"""The records of `mqlake.alarms`: alarms, and acknowledgements of those who look after them.

`docs/records.md` is this module in prose. An alarm and its acknowledgement are two records: the
process that sees an alarm writes the one again and again, its acknowledger the other.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Final, Literal, TypeVar

from mqlake.records.members import load, to_dataclass
from mqlake.records.versions import RECORD_VERSION

Severity = Literal["alarm", "warning"]
Told = Literal["raised", "cleared"]


@dataclass(slots=True, frozen=True)
class Alarm:
    """Key `a/<id>`."""

    severity: Severity
    what: str
    """In words, the same as long as the alarm is the same."""
    detail: str
    """As it was when the record was written."""
    page: str
    """Page of the dashboard with more about it."""
    item: str
    """Item of that page; empty: the page itself."""
    tenant: str | None
    """Tenant that it concerns; None: the system."""
    raised_at: int
    """UTC epoch in milliseconds, as all times here."""
    seen_at: int
    """When its owner saw it last; it writes that once a minute."""
    owner: str
    """Run of the API that clears it, and tells of it."""
    times: int = 1
    """That it was raised."""
    cleared_at: int | None = None
    """None: it is open."""
    told: dict[str, Told] = field(default_factory=dict)
    """Channel -> its last notice of this alarm."""


@dataclass(slots=True, frozen=True)
class Acknowledgement:
    """Key `k/<id>`; it counts for an alarm that was raised before."""

    at: int
    by: str
    note: str
    tenant: str | None
    """As of the alarm."""


Kind = Literal["alarm", "acknowledgement"]
_LETTERS: Final[dict[Kind, str]] = {"alarm": "a", "acknowledgement": "k"}
_KINDS: Final = {letter: kind for kind, letter in _LETTERS.items()}
Value = TypeVar("Value", Alarm, Acknowledgement)


def alarm_record_key(kind: Kind, alarm_id: str) -> bytes:
    return f"{_LETTERS[kind]}/{alarm_id}".encode()


def decode_alarm_key(data: bytes) -> tuple[Kind, str] | None:
    """Read a key of `mqlake.alarms`; None for one of another kind."""
    letter, separator, alarm_id = data.decode(errors="replace").partition("/")
    kind = _KINDS.get(letter)
    return None if kind is None or not separator or not alarm_id else (kind, alarm_id)


def encode_alarm(value: Alarm | Acknowledgement) -> bytes:
    fields = {"v": RECORD_VERSION, **asdict(value)}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def decode_alarm(class_: type[Value], data: bytes) -> Value:
    """Undo `encode_alarm`; fields that we do not know are left out.

    Raises:
        InvalidRecord: It has another form or version.
    """
    what = class_.__name__.lower()
    return to_dataclass(class_, load(data, what), what)
