"""The TLS settings of a listener as an SSLContext, and a new one when its files have changed."""

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Final

from ingest.gateway.settings.listeners import SecureWebSocketListener, TlsSettings
from mqlake.errors import OperationalError
from mqlake.security.tls import reason_of, server_context

logger = logging.getLogger(__name__)

_CLIENT_CERTIFICATES: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


class Certificates:
    """Certificate, key and authorities of one listener.

    Attributes:
        context: For the next connection. Those that are open keep the one they came in by, also
            its authorities: no connection is cut by a reload.
    """

    def __init__(self, name: str, settings: TlsSettings) -> None:
        self._name = name
        self._settings = settings
        self.context: ssl.SSLContext

    async def load(self) -> None:
        """Read the files.

        Raises:
            OperationalError: They cannot be used; the context stays as it was.
        """
        self.context = await asyncio.to_thread(make_context, self._settings)

    async def reload(self) -> None:
        """Read the files again; keep the old certificates, and log it, when they cannot be used."""
        fields = {"listener": self._name, "certificate": str(self._settings.certificate)}
        try:
            await self.load()
        except OperationalError as exc:
            fields["reason"] = str(exc)
            logger.error("certificate not reloaded, the old one stays", extra={"fields": fields})
        else:
            logger.info("certificate reloaded", extra={"fields": fields})


def make_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context of a listener. Blocks: reads files.

    Raises:
        OperationalError: A file cannot be read or holds something else; names it.
    """
    password = settings.key_password.get_secret_value() if settings.key_password else ""
    context = server_context(
        settings.certificate, settings.key, password, settings.minimum_tls_version
    )
    context.verify_mode = _CLIENT_CERTIFICATES[settings.client_certificates]
    if settings.ca_certificates is not None:
        try:
            context.load_verify_locations(settings.ca_certificates)
        except (OSError, ValueError) as exc:
            raise OperationalError(
                f"ca_certificates {settings.ca_certificates} cannot be used: {reason_of(exc)}"
            ) from exc
    if settings.revoked_certificates is not None:
        _load_revoked(context, settings.revoked_certificates)
    # An offer without any of these is accepted all the same: OpenSSL then selects none.
    is_http = isinstance(settings, SecureWebSocketListener)
    context.set_alpn_protocols(["http/1.1"] if is_http else ["mqtt"])
    context.sni_callback = _remember_server_name
    return context


def _load_revoked(context: ssl.SSLContext, file: Path) -> None:
    before = context.cert_store_stats()
    try:
        context.load_verify_locations(file)
    except (OSError, ValueError) as exc:
        raise OperationalError(
            f"revoked_certificates {file} cannot be used: {reason_of(exc)}"
        ) from exc
    after = context.cert_store_stats()
    # A certificate in this file would be trusted as an authority.
    if after["crl"] == before["crl"] or after["x509"] != before["x509"]:
        raise OperationalError(
            f"revoked_certificates {file} cannot be used: expected lists of revoked certificates "
            f"(X509 CRL) in PEM and nothing else, found {after['crl'] - before['crl']} lists and "
            f"{after['x509'] - before['x509']} certificates"
        )
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN  # authorities between may be revoked, too


def _remember_server_name(
    ssl_object: ssl.SSLObject | ssl.SSLSocket, name: str | None, _context: ssl.SSLContext
) -> None:
    ssl_object.sni = name  # type: ignore[union-attr]
