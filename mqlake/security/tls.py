"""TLS of servers by certificate and key in files; and how their own machine asks such a server."""

import ssl
from pathlib import Path
from typing import Final, Literal, TypeAlias

from mqlake.errors import OperationalError

TlsVersion: TypeAlias = Literal["1.2", "1.3"]

CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Ciphers of TLS 1.2 with forward secrecy and authenticated encryption. Those of 1.3 are all of
that kind."""
_MINIMUM_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_END: Final = "-----END CERTIFICATE-----\n"


def server_context(
    certificate: Path, key: Path, password: str, minimum_version: TlsVersion
) -> ssl.SSLContext:
    """Return the context of a server. Blocks: reads files.

    Args:
        certificate: PEM file: the server's certificate, then its chain.
        key: PEM file: its private key.
        password: Password of the key; empty: none.
        minimum_version: Lowest version of TLS.

    Raises:
        OperationalError: A file cannot be read or holds something else; names both.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _MINIMUM_VERSIONS[minimum_version]
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(CIPHERS)
    load_certificate(context, certificate, key, password)
    return context


def load_certificate(context: ssl.SSLContext, certificate: Path, key: Path, password: str) -> None:
    """Give a context the certificate that connections from now on are shown.

    Raises:
        OperationalError: As of `server_context`.
    """
    try:
        # A password even for a key that has none: without one OpenSSL would ask the terminal.
        context.load_cert_chain(certificate, key, password)
    except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
        raise OperationalError(
            f"certificate {certificate} with key {key} cannot be used: {reason_of(exc)}"
        ) from exc


def pinned_context(certificate: Path) -> ssl.SSLContext:
    """Return the context for asking a server of this machine: it shows this certificate, no other.

    Neither its name nor its issuer counts: the server itself reads the same file.

    Raises:
        OperationalError: The file cannot be read or holds something else.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    try:
        own, end, _chain = certificate.read_text(encoding="ascii").partition(_END)
        context.load_verify_locations(cadata=own + end)
    except (OSError, ValueError) as exc:
        raise OperationalError(
            f"certificate {certificate} cannot be used: {reason_of(exc)}"
        ) from exc
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def reason_of(exc: Exception) -> str:
    """Return in words why a file cannot be used."""
    if isinstance(exc, ssl.SSLError):
        return exc.reason or "not PEM, or the key is of another certificate"
    return getattr(exc, "strerror", None) or str(exc)
