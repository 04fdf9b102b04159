"""Every key, account and session as `mqlake.access` has them.

In memory: they are few and small. A thread follows the log; records that the API itself writes are
taken at once, so that a key works, and a revoked one does not, as soon as that is answered.
"""

from typing import TypeVar

from api.log.materialised import MaterialisedView
from mqlake.records.access import (
    AccessKind,
    AccessValue,
    Account,
    ApiKey,
    LoginSession,
    decode_access,
    decode_access_key,
)

Value = TypeVar("Value")


class MaterialisedAccess(MaterialisedView):
    """The keys, accounts and sessions that are known."""

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._values: dict[AccessKind, dict[str, AccessValue]] = {
            "key": {},
            "account": {},
            "session": {},
        }

    def _take(self, data: bytes, value: bytes | None) -> None:
        """Apply a record; if it cannot be read, the earlier one of its key goes.

        A caller that it would refuse must not come in by the earlier record.
        """
        found = decode_access_key(data)
        if found is None:
            return
        kind, name = found
        self._values[kind].pop(name, None)
        if value is not None:
            self._values[kind][name] = decode_access(kind, value)

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
        with self._changed:
            value = self._values[kind].get(name)
        return value if isinstance(value, class_) else None

    def _all(self, kind: AccessKind, class_: type[Value]) -> list[tuple[str, Value]]:
        with self._changed:
            found = sorted(self._values[kind].items())
        return [(name, value) for name, value in found if isinstance(value, class_)]
