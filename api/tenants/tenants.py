"""Tenants: records of `mqlake.gateways`, followed and written."""

from typing import Final

from api.log.materialised import MaterialisedView
from api.log.repository import InTheWay, RecordKind, Repository
from mqlake.records.messages import GATEWAYS
from mqlake.records.rule_facts import keep
from mqlake.records.tenants import (
    NO_LIMITS,
    KeptTenant,
    Tenant,
    TenantLimits,
    decode_tenant,
    encode_tenant,
    tenant_key,
    tenant_of,
)

MAX_TENANTS: Final = 10_000


class MaterialisedTenants(MaterialisedView):
    """The tenants as the log has them."""

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._tenants: dict[str, KeptTenant] = {}

    def _take(self, data: bytes, value: bytes | None) -> None:
        name = tenant_of(data)
        if name is not None:
            keep(self._tenants, name, None if value is None else decode_tenant(value))

    def all(self) -> dict[str, KeptTenant]:
        with self._changed:
            return dict(self._tenants)

    def get(self, name: str) -> KeptTenant | None:
        return self._tenants.get(name)

    def limits(self, name: str) -> TenantLimits:
        """Return the limits of a tenant."""
        kept = self.get(name)
        return NO_LIMITS if kept is None else kept.limits


class TenantChanges(Repository[str, KeptTenant, MaterialisedTenants]):
    """Writes tenants."""

    kind = RecordKind(
        GATEWAYS, tenant_key, encode_tenant, lambda _name: "tenant", has_version=False
    )

    def put(self, name: str, tenant: Tenant, by: str) -> KeptTenant:
        """Create a tenant, or replace its definition.

        Raises:
            InTheWay: There is no room for another one.
            LogError: The log does not answer.
        """
        with self._lock:
            known = self._view.get(name)
            if known is None and len(self._view.all()) >= MAX_TENANTS:
                raise InTheWay(f"there are {MAX_TENANTS} tenants, which is the limit")
            now_ms = self._clock.now_ms()
            created_at = now_ms if known is None else known.created_at
            kept = KeptTenant(**tenant.model_dump(), created_at=created_at, at=now_ms, by=by)
            self.write([(name, kept)])
        return kept

    def suspend(self, name: str) -> None:
        """Suspend a tenant; one that is not there stays so."""
        with self._lock:
            known = self._view.get(name)
            if known is not None and known.state != "suspended":
                kept = known.model_copy(update={"state": "suspended", "at": self._clock.now_ms()})
                self.write([(name, kept)])

    def delete(self, name: str) -> None:
        """Forget a tenant: gateways know none of this name then."""
        with self._lock:
            self.write([(name, None)])
