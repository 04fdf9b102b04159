"""Every reference table as `mqlake.rules` has it: the last request, and its result."""

import time
from dataclasses import dataclass
from typing import Literal

from api.log.materialised import MaterialisedView
from mqlake.records.references import (
    Columns,
    ReferenceKey,
    ReferenceRequest,
    ReferenceState,
    decode_reference_key,
    decode_reference_request,
    decode_reference_state,
    reference_key,
)

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
        """Tell whether the newest request was carried out, or given up."""
        return self.table is not None and self.table.number >= self.number

    @property
    def state(self) -> State:
        if self.table is None or not self.is_answered:
            return "writing"
        return "failed" if self.table.state == "failed" else "ready"

    @property
    def exists(self) -> bool:
        """Tell whether users see it: there is a table, or one is being made, or could not be."""
        if not self.is_answered:
            return self.request is not None and self.request.kind != "delete"
        return self.table is not None and self.table.state != "deleted"

    @property
    def version(self) -> int | None:
        return None if self.table is None else self.table.version


class MaterialisedReferences(MaterialisedView):
    """All known reference tables; safe to use from any thread."""

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._requests: dict[Name, ReferenceRequest] = {}
        self._tables: dict[Name, ReferenceState] = {}

    def get(self, tenant: str, reference: str) -> Reference | None:
        """Return a reference table, also a deleted one that is still known."""
        with self._changed:
            return self._get((tenant, reference))

    def all(self, tenant: str) -> list[tuple[str, Reference]]:
        """Return a tenant's reference tables by identifier."""
        with self._changed:
            names = sorted(self._requests.keys() | self._tables.keys())
            found = [(name, self._get((tenant, name))) for of, name in names if of == tenant]
        return [(name, one) for name, one in found if one is not None and one.exists]

    def names(self) -> list[tuple[str, str]]:
        """Return tenant and identifier of each reference table that there is."""
        with self._changed:
            return sorted(self._tables)

    def left_of(self, tenant: str) -> list[bytes]:
        """Return the keys that are left of a tenant whose tables are deleted."""
        with self._changed:
            found = [ReferenceKey("request", *name) for name in self._requests]
            found += [ReferenceKey("state", *name) for name in self._tables]
        return [reference_key(key) for key in found if key.tenant == tenant]

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
