"""Records on which the engine has died: for which rule, and which of them it skips for that.

Each engine, router and lake, notes in the file `places` of its folder which rule each of its
threads is evaluating on which record (`Places.java`). A file that is there when it starts is that
of an engine that died; each of its places has one death more in `<data-dir>/poison.json`. At the
second one the rule skips the record, which becomes a dead letter, and the rule is paused.
"""

import fcntl
import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from mqlake.durable import write_durably
from mqlake.errors import OperationalError
from mqlake.records.outputs import SOURCE_EVENTS, SOURCE_INBOUND

POISON_FILE: Final = "poison.json"
PLACES_FILE: Final = "places"
DEATHS_TO_SKIP: Final = 2
MOST_ENTRIES: Final = 1_000

_SLOT_BYTES: Final = 256
_SLOT: Final = struct.Struct(">iiqiii")
"""Being evaluated, partition, offset, version, is an event, length of the name behind it."""


@dataclass(frozen=True, slots=True)
class PoisonPlace:
    """A rule and a record of the log.

    Attributes:
        source: `i` for `mqlake.inbound`, `e` for `mqlake.events`, as in identifiers of outputs.
    """

    tenant: str
    rule: str
    source: str
    partition: int
    offset: int

    @property
    def record(self) -> str:
        return f"{self.source}:{self.partition}:{self.offset}"

    def __str__(self) -> str:
        return f"{self.tenant}/{self.rule} {self.record}"

    @classmethod
    def of(cls, tenant: str, rule: str, record: str) -> "PoisonPlace":
        """Read a record as `i:0:17`.

        Raises:
            OperationalError: It is none.
        """
        parts = record.split(":")
        is_source = parts[0] in (SOURCE_INBOUND, SOURCE_EVENTS)
        if len(parts) != 3 or not is_source or not all(map(_is_number, parts[1:])):
            raise OperationalError(
                f"{record!r} is no record: expected i:<partition>:<offset> of mqlake.inbound or "
                "e:<partition>:<offset> of mqlake.events"
            )
        return cls(tenant, rule, parts[0], int(parts[1]), int(parts[2]))


@dataclass(frozen=True, slots=True)
class PoisonEntry:
    """Deaths of the engine at one place.

    Attributes:
        version: Version of the rule when the engine last died there; 0 when an operator named it.
        deaths: How often it did.
        at_ms: When, or when it was named.
        skipped: The record becomes a dead letter of the rule without being evaluated.
    """

    place: PoisonPlace
    version: int
    deaths: int
    at_ms: int
    skipped: bool

    def to_json(self) -> dict[str, Any]:
        """Return it as the file and `bin/mqlake poison list --json` have it."""
        fields = asdict(self)
        return fields | {"buried": fields.pop("skipped")}

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "PoisonEntry":
        """Undo `to_json`."""
        place, version, deaths = PoisonPlace(**fields["place"]), fields["version"], fields["deaths"]
        return cls(place, version, deaths, fields["at_ms"], fields["buried"])


class Poison:
    """The file of a data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / POISON_FILE

    def entries(self) -> list[PoisonEntry]:
        """Return the entries, the last deaths last.

        Raises:
            OperationalError: The file is damaged.
        """
        try:
            listed = json.loads(self._path.read_text(encoding="utf-8"))["places"]
            return [PoisonEntry.of(one) for one in listed]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except (OSError, ValueError, TypeError, KeyError) as exc:
            raise OperationalError(
                f"{self._path} is damaged ({exc}): delete it; its records are evaluated again"
            ) from exc

    def skipped(self) -> list[PoisonEntry]:
        return [entry for entry in self.entries() if entry.skipped]

    def take_deaths(self, places: Path, now_ms: int) -> list[PoisonEntry]:
        """Count the places at which an engine died; return their entries as they are now."""
        found = list(_noted(places))
        taken = []
        if found:
            with self._changing() as entries:
                for place, version in found:
                    known = entries.pop(place, None)
                    deaths = 1 + (known.deaths if known else 0)
                    skipped = deaths >= DEATHS_TO_SKIP or (known is not None and known.skipped)
                    entries[place] = PoisonEntry(place, version, deaths, now_ms, skipped)
                    taken.append(entries[place])
        forget_places(places)
        return taken

    def skip(self, place: PoisonPlace, now_ms: int) -> None:
        """Skip a place that an operator names."""
        with self._changing() as entries:
            known = entries.pop(place, PoisonEntry(place, 0, 0, now_ms, skipped=True))
            entries[place] = replace(known, skipped=True)

    def forget(self) -> int:
        """Have everything evaluated again; return how many places were known."""
        with self._changing() as entries:
            count = len(entries)
            entries.clear()
        return count

    @contextmanager
    def _changing(self) -> Iterator[dict[PoisonPlace, PoisonEntry]]:
        """Give the entries, and write them as they then are; one process at a time does that."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            entries = {entry.place: entry for entry in self.entries()}
            yield entries
            kept = list(entries.values())[-MOST_ENTRIES:]
            places = {"places": [entry.to_json() for entry in kept]}
            write_durably(self._path, json.dumps(places, indent=1).encode())


def forget_places(places: Path) -> None:
    """Take away an engine's notes: it has ended as it should."""
    with suppress(FileNotFoundError, NotADirectoryError):
        places.unlink()


def _noted(places: Path) -> Iterator[tuple[PoisonPlace, int]]:
    try:
        data = places.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return
    for start in range(0, len(data) - _SLOT_BYTES + 1, _SLOT_BYTES):
        active, partition, offset, version, is_event, length = _SLOT.unpack_from(data, start)
        name = data[start + _SLOT.size :][: max(0, min(length, _SLOT_BYTES - _SLOT.size))]
        tenant, slash, rule = name.decode(errors="replace").partition("/")
        if active == 1 and slash and offset >= 0:
            source = SOURCE_EVENTS if is_event else SOURCE_INBOUND
            yield PoisonPlace(tenant, rule, source, partition, offset), version


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19
