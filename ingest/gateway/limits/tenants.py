"""The tenants, and whose clients are let in, by records of `mqlake.gateways`."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final

from ingest.gateway.listeners.tenancy import SEPARATOR, tenancy_of
from ingest.protocol.reason_codes import ConnackReasonCode
from mqlake.errors import InvalidRecord
from mqlake.records.tenants import NO_LIMITS, TENANT_PATTERN, decode_tenant, tenant_of

if TYPE_CHECKING:
    import asyncio

    from ingest.gateway.base.connections import Connections
    from ingest.gateway.base.tenant_counters import CountersOfTenants
    from ingest.gateway.limits.shared_limits import SharedLimits
    from ingest.gateway.settings.gateway import GatewaySettings
    from mqlake.records.messages import LogRecord
    from mqlake.records.tenants import KeptTenant

logger = logging.getLogger(__name__)

UNKNOWN: Final = "there is no such tenant"
SUSPENDED: Final = "its tenant is suspended"
_NAME: Final = re.compile(TENANT_PATTERN)


class Tenants:
    """The tenants that a gateway knows.

    Args:
        settings: Settings of the gateway; its own tenant is there without a record.
        connections: Connections of clients whose tenant may be suspended, or go, or have other
            limits.
        limits: Limits of tenants.
        counters: Counters of tenants.
        loop: Event loop of the gateway.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        connections: Connections,
        limits: SharedLimits,
        counters: CountersOfTenants,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._own = settings.tenant
        self._has_others = any(map(tenancy_of, settings.all_listeners)) or any(
            getattr(one, "tenant_claim", None) for one in settings.authenticators.values()
        )
        self._connections = connections
        self._limits = limits
        self._counters = counters
        self._loop = loop
        self._kept: dict[str, KeptTenant] = {}
        self._is_renewing = False

    def prefix_of(self, tenant: str) -> str:
        """Return the prefix of its users' names."""
        return "" if tenant == self._own else tenant + SEPARATOR

    def refusal(self, tenant: str) -> tuple[ConnackReasonCode, str] | None:
        """Return why no client of a tenant is let in, or None."""
        kept = self._kept.get(tenant)
        if kept is None:
            if tenant == self._own:
                return None
            return ConnackReasonCode.NOT_AUTHORIZED, UNKNOWN
        if kept.state == "suspended":
            return ConnackReasonCode.BANNED, SUSPENDED
        return None

    def is_anothers(self, username: str) -> bool:
        """Tell whether a bare name, of a user of the own tenant, is that of another one's user."""
        tenant, slash, _ = username.partition(SEPARATOR)
        if not slash or tenant == self._own:
            return False
        return tenant in self._kept or (self._has_others and _NAME.match(tenant) is not None)

    def receive(self, record: LogRecord) -> None:
        """Take a record of `mqlake.gateways`; connections go by it at once."""
        name = tenant_of(record.key or b"")
        if name is None:
            return
        if record.value is None:
            self._kept.pop(name, None)
            self._counters.forget(name)
        else:
            try:
                self._kept[name] = decode_tenant(record.value)
            except InvalidRecord as exc:
                logger.warning("tenant ignored", extra={"fields": {"reason": str(exc)}})
                return
        kept = self._kept.get(name)
        self._limits.set_limits(name, NO_LIMITS if kept is None else kept.limits)
        if not self._is_renewing:  # once for all that come together
            self._is_renewing = True
            self._loop.call_soon(self._renew)

    def _renew(self) -> None:
        self._is_renewing = False
        for connection in list(self._connections):
            connection.admission.renew_tenant()
