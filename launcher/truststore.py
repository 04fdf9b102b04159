"""The certificates that the machine trusts, as a key store that Java reads (JKS, format 2).

For the Java from a wheel, which brings a list of its own and knows nothing of those that the
machine's owner added (a company's proxy, say).
"""

import hashlib
import os
import ssl
import struct
from pathlib import Path
from typing import Final

_MAGIC: Final = 0xFEED_FEED
_FORMAT: Final = 2
_TRUSTED_CERTIFICATE: Final = 2
# Java reads a store of public certificates without its password; the digest needs one all the same.
_PASSWORD: Final = "changeit"  # noqa: S105
_BUNDLE: Final = "/etc/ssl/certs/ca-certificates.crt"


def write_truststore(path: Path) -> bool:
    """Write the machine's certificates; False, and no file, when it has no list of them."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(os.environ.get("SSL_CERT_FILE", _BUNDLE))
    except OSError:
        return False
    certificates = context.get_ca_certs(binary_form=True)
    if certificates:
        path.write_bytes(encode_truststore(certificates))
    return bool(certificates)


def encode_truststore(certificates: list[bytes]) -> bytes:
    """Return a JKS key store of X.509 certificates in DER."""
    parts = [struct.pack(">III", _MAGIC, _FORMAT, len(certificates))]
    for number, certificate in enumerate(certificates):
        parts += (
            struct.pack(">I", _TRUSTED_CERTIFICATE),
            _text(f"certificate-{number}"),
            struct.pack(">Q", 0),
            _text("X.509"),
            struct.pack(">I", len(certificate)),
            certificate,
        )
    store = b"".join(parts)
    secret = _PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite"
    return store + hashlib.sha1(secret + store).digest()  # noqa: S324 - the format's


def _text(value: str) -> bytes:
    data = value.encode("ascii")
    return struct.pack(">H", len(data)) + data
