"""Every reference table as `mqlake.rules` has it: what was asked for last, and what came of it."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from api.following import Followed, Taker
from mqlake.errors import InvalidRecord
from mqlake.reference_records import (
    Columns,
    ReferenceRequest,
    ReferenceState,
    decode_reference_key,
    decode_reference_request,
    decode_reference_state,
)

_NOTHING: Final = -1
"""Offset of a key that has not been seen."""

Name = tuple[str, str]
"""Tenant and identifier of a reference."""
State = Literal["writing", "ready", "failed"]


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference table: the newest request, and the table as it is."""

    request: ReferenceRequest | None
    table: ReferenceState | None

    @property
    def number(self) -> int:
        """The highest number that a request has had."""
        return max(
            0 if self.request is None else self.request.number,
            0 if self.table is None else self.table.number,
        )

    @property
    def is_answered(self) -> bool:
        """Whether the newest request was carried out, or given up."""
        return self.table is not None and self.table.number >= self.number

    @property
    def state(self) -> State:
        if self.table is None or not self.is_answered:
            return "writing"
        return "failed" if self.table.state == "failed" else "ready"

    @property
    def exists(self) -> bool:
        """Whether users see it: there is a table, or one is being made, or could not be."""
        if not self.is_answered:
            return self.request is not None and self.request.kind != "delete"
        return self.table is not None and self.table.state != "deleted"

    @property
    def version(self) -> int | None:
        return None if self.table is None else self.table.version


class ReferenceBook(Taker):
    """What is known of all reference tables; safe to use from any thread.

    Attributes:
        is_complete: All that was in the log when the reading began is here.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.is_complete = False
        self._requests: dict[Name, ReferenceRequest] = {}
        self._tables: dict[Name, ReferenceState] = {}
        self._offsets: dict[bytes, int] = {}

    def forget(self) -> None:
        """Begin anew."""
        with self._changed:
            self._begin_anew()

    def complete(self) -> None:
        with self._changed:
            self.is_complete = True
            self._changed.notify_all()

    def take(self, records: Sequence[Followed], *, is_old: bool) -> list[InvalidRecord]:
        """Apply records of `mqlake.rules`; those that were applied before change nothing."""
        refused: list[InvalidRecord] = []
        with self._changed:
            for record in records:
                # The API takes its own records before the follower sees them.
                if record.offset <= self._offsets.get(record.key, _NOTHING):
                    continue
                self._offsets[record.key] = record.offset
                try:
                    self._take(record.key, record.value)
                except InvalidRecord as exc:
                    refused.append(exc)
            self._changed.notify_all()
        return refused

    def get(self, tenant: str, reference: str) -> Reference | None:
        """Return what is known, also of a table that was deleted."""
        with self._changed:
            return self._get((tenant, reference))

    def all(self, tenant: str) -> list[tuple[str, Reference]]:
        """Return a tenant's reference tables by identifier."""
        with self._changed:
            names = sorted(self._requests.keys() | self._tables.keys())
            found = [(name, self._get((tenant, name))) for of, name in names if of == tenant]
        return [(name, one) for name, one in found if one is not None and one.exists]

    def columns(self, tenant: str) -> dict[str, Columns]:
        """Return the columns of each table of a tenant that rules can join."""
        with self._changed:
            return {
                name: table.columns
                for (of, name), table in sorted(self._tables.items())
                if of == tenant and table.version is not None
            }

    def await_answer(
        self, tenant: str, reference: str, number: int, timeout_seconds: float
    ) -> Reference | None:
        """Return a reference as soon as a request was carried out, at the latest in time."""
        end = time.monotonic() + timeout_seconds
        with self._changed:
            while True:
                found = self._get((tenant, reference))
                table = None if found is None else found.table
                left = end - time.monotonic()
                if (table is not None and table.number >= number) or left <= 0:
                    return found
                self._changed.wait(left)

    def _get(self, name: Name) -> Reference | None:
        request, table = self._requests.get(name), self._tables.get(name)
        return None if request is None and table is None else Reference(request, table)

    def _take(self, data: bytes, value: bytes | None) -> None:
        key = decode_reference_key(data)
        if key is None:
            return
        name = (key.tenant, key.reference)
        if key.kind == "request":
            if value is None:
                self._requests.pop(name, None)
            else:
                self._requests[name] = decode_reference_request(value)
        elif value is None:
            self._tables.pop(name, None)
        else:
            self._tables[name] = decode_reference_state(value)
