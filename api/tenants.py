"""Tenants: records of `mqlake.gateways`, followed and written."""

import threading
from typing import Final

from api.log import LogAppender
from mqlake.clock import Clock
from mqlake.errors import MqlakeError
from mqlake.records import GATEWAYS
from mqlake.tenants import (
    KeptTenant,
    Tenant,
    decode_tenant,
    encode_tenant,
    tenant_key,
    tenant_of,
)

MAX_TENANTS: Final = 10_000


class TooManyTenants(MqlakeError):  # noqa: N818 - it names what is in the way
    """There is no room for another one."""


class MaterialisedTenants:
    """The tenants as the log has them; safe to use from any thread.

    Attributes:
        is_complete: Whether all have been read.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tenants: dict[str, KeptTenant] = {}
        self.is_complete = False

    def forget(self) -> None:
        """Begin anew."""
        with self._lock:
            self.is_complete = False
            self._tenants.clear()

    def take(self, key: bytes, value: bytes | None) -> None:
        """Take a record of `mqlake.gateways`; what is no tenant is passed over.

        Raises:
            InvalidRecord: It is of another form.
        """
        name = tenant_of(key)
        if name is None:
            return
        tenant = None if value is None else decode_tenant(value)
        with self._lock:
            if tenant is None:
                self._tenants.pop(name, None)
            else:
                self._tenants[name] = tenant

    def complete(self) -> None:
        self.is_complete = True

    def all(self) -> dict[str, KeptTenant]:
        with self._lock:
            return dict(self._tenants)

    def get(self, name: str) -> KeptTenant | None:
        return self._tenants.get(name)


class TenantChanges:
    """Writes tenants; safe to use from any thread.

    Args:
        log: Where to.
        view: Takes at once what is written.
        clock: Says when one was changed.
    """

    def __init__(self, log: LogAppender, view: MaterialisedTenants, clock: Clock) -> None:
        self._log = log
        self._view = view
        self._clock = clock
        self._lock = threading.Lock()

    def put(self, name: str, tenant: Tenant, by: str) -> KeptTenant:
        """Create a tenant, or say anew what it is.

        Raises:
            TooManyTenants: There is no room for another one.
            LogError: The log does not answer.
        """
        with self._lock:
            known = self._view.get(name)
            if known is None and len(self._view.all()) >= MAX_TENANTS:
                raise TooManyTenants(f"there are {MAX_TENANTS} tenants, which is the limit")
            now_ms = self._clock.now_ms()
            created_at = now_ms if known is None else known.created_at
            kept = KeptTenant(**tenant.model_dump(), created_at=created_at, at=now_ms, by=by)
            self._write(name, encode_tenant(kept))
        return kept

    def suspend(self, name: str) -> None:
        """Suspend a tenant; one that is not there stays so."""
        with self._lock:
            known = self._view.get(name)
            if known is not None and known.state != "suspended":
                kept = known.model_copy(update={"state": "suspended", "at": self._clock.now_ms()})
                self._write(name, encode_tenant(kept))

    def delete(self, name: str) -> None:
        """Forget a tenant: gateways know none of this name then."""
        with self._lock:
            self._write(name, None)

    def _write(self, name: str, value: bytes | None) -> None:
        key = tenant_key(name)
        self._log.append(GATEWAYS, key, value, what="tenant")
        self._view.take(key, value)
