"""Every key, account and session as `mqlake.access` has them.

In memory: they are few and small. A thread follows the log; what the API itself writes is taken at
once, so that a key works, and a revoked one does not, as soon as that is answered.
"""

import threading
from collections.abc import Sequence
from typing import Final, TypeVar

from api.following import Followed, Taker
from mqlake.access_records import (
    AccessKind,
    AccessValue,
    Account,
    ApiKey,
    LoginSession,
    decode_access,
    decode_access_key,
)
from mqlake.errors import InvalidRecord

_NOTHING: Final = -1
"""Offset of a key that has not been seen."""

Value = TypeVar("Value")


class MaterialisedAccess(Taker):
    """What is known of who may come in; safe to use from any thread.

    Attributes:
        is_complete: All that was in the log when the reading began is here.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        with self._lock:
            self.is_complete = False
            self._values: dict[AccessKind, dict[str, AccessValue]] = {
                "key": {},
                "account": {},
                "session": {},
            }
            self._offsets: dict[bytes, int] = {}

    def complete(self) -> None:
        self.is_complete = True

    def take(self, records: Sequence[Followed], *, is_old: bool) -> list[InvalidRecord]:
        """Apply records of `mqlake.access`; those that were applied before change nothing.

        What stood under the key of a record that cannot be read goes: whoever could not come in by
        it must not come in by what was there before.
        """
        refused: list[InvalidRecord] = []
        with self._lock:
            for record in records:
                found = decode_access_key(record.key)
                if found is None or record.offset <= self._offsets.get(record.key, _NOTHING):
                    continue
                self._offsets[record.key] = record.offset
                kind, name = found
                self._values[kind].pop(name, None)
                if record.value is None:
                    continue
                try:
                    self._values[kind][name] = decode_access(kind, record.value)
                except InvalidRecord as exc:
                    refused.append(exc)
        return refused

    def key(self, key_id: str) -> ApiKey | None:
        return self._get("key", key_id, ApiKey)

    def account(self, name: str) -> Account | None:
        return self._get("account", name, Account)

    def session(self, session_id: str) -> LoginSession | None:
        return self._get("session", session_id, LoginSession)

    def all_keys(self) -> list[tuple[str, ApiKey]]:
        """Return identifiers and keys, by identifier."""
        return self._all("key", ApiKey)

    def accounts(self) -> list[tuple[str, Account]]:
        """Return names and accounts, by name."""
        return self._all("account", Account)

    def sessions(self) -> list[tuple[str, LoginSession]]:
        return self._all("session", LoginSession)

    def _get(self, kind: AccessKind, name: str, class_: type[Value]) -> Value | None:
        with self._lock:
            value = self._values[kind].get(name)
        return value if isinstance(value, class_) else None

    def _all(self, kind: AccessKind, class_: type[Value]) -> list[tuple[str, Value]]:
        with self._lock:
            found = sorted(self._values[kind].items())
        return [(name, value) for name, value in found if isinstance(value, class_)]
