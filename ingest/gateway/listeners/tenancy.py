"""The tenant of a connection, by its own statements before its client is authenticated.

The host name that it asked for in TLS (SNI), a field of its certificate, and the beginning of its
user name; a token says it later. They must agree: none of them opens a tenant by itself, as the
user has to log in as one of that tenant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mqlake.errors import MqlakeError

if TYPE_CHECKING:
    from asyncio import BaseTransport

    from ingest.gateway.settings.listeners import ListenerSettings

SEPARATOR: Final = "/"
"""Between tenant and user."""

_FIELDS: Final = {
    "common_name": "commonName",
    "organization": "organizationName",
    "organizational_unit": "organizationalUnitName",
}


class TenantUnclear(MqlakeError):  # noqa: N818 - it names the unclear thing
    """A connection says two tenants, or has a certificate that says none."""


@dataclass(frozen=True, slots=True)
class Tenancy:
    """How one listener finds the tenants of its clients."""

    tenant: str = ""
    """Tenant if nothing else names one; empty: the gateway's own."""
    server_names: str = ""
    """Domain whose subdomains are tenants; empty: none."""
    certificate_field: str = ""
    """Field in the subject of a client's certificate that names the tenant; empty: none."""
    in_username: bool = False
    """User names begin with the tenant and a slash."""

    def said(self, transport: BaseTransport | None, username: str | None) -> str | None:
        """Return which tenant a connection says, None: none.

        It need not be there, nor be a name that a tenant may have.

        Args:
            transport: Knows host name and certificate.
            username: User name of its CONNECT.

        Raises:
            TenantUnclear: It says two, or its certificate none.
        """
        found = None
        if transport is not None:
            found = self._by_server_name(transport.get_extra_info("sni"))
            found = _agreed(found, self._by_certificate(transport))
        if self.in_username and username is not None and SEPARATOR in username:
            found = _agreed(found, username.partition(SEPARATOR)[0])
        return found

    def _by_server_name(self, name: str | None) -> str | None:
        if not self.server_names or name is None:
            return None
        label, dot, domain = name.lower().partition(".")
        return label if dot and domain == self.server_names else None

    def _by_certificate(self, transport: BaseTransport) -> str | None:
        if not self.certificate_field:
            return None
        if transport.get_extra_info("client_certificate_not_after") is None:
            return None  # it has shown none
        fields: list[tuple[str, str]] = transport.get_extra_info("client_certificate_fields") or []
        names = [name for field, name in fields if field == _FIELDS[self.certificate_field]]
        if len(names) != 1:
            words = self.certificate_field.replace("_", " ")
            raise TenantUnclear(f"its certificate has {len(names)} names as {words}, expected one")
        return names[0]


def tenancy_of(settings: ListenerSettings) -> Tenancy | None:
    """Return how a listener finds tenants; None: all of its clients are the gateway's own."""
    tenancy = Tenancy(
        settings.tenant,
        getattr(settings, "tenant_server_names", ""),
        getattr(settings, "tenant_certificate_field", ""),
        settings.tenant_in_username,
    )
    return None if tenancy == Tenancy() else tenancy


def _agreed(one: str | None, other: str | None) -> str | None:
    if one is not None and other is not None and one != other:
        raise TenantUnclear("host name, certificate and user name are of different tenants")
    return other if one is None else one
