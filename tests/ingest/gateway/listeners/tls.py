"""Certificates for the tests, made as they run."""

import ssl
from pathlib import Path
from typing import Any

import trustme

HOST = "mqtt.example.org"


class Authority:
    """An authority, the server's certificate files in a folder, and clients that trust it."""

    def __init__(self, ca: trustme.CA, folder: Path) -> None:
        self._ca = ca
        self.certificate = folder / "server.pem"
        self.key = folder / "server.key"
        self.ca_certificates = folder / "ca.pem"
        ca.cert_pem.write_to_path(str(self.ca_certificates))
        self.issue()

    def issue(self) -> None:
        """Write a new server certificate in the place of the last one."""
        issued = self._ca.issue_cert(HOST, "localhost", "127.0.0.1", "::1")
        issued.private_key_pem.write_to_path(str(self.key))
        self.certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return the TLS keys of a listener."""
        return {"certificate": self.certificate, "key": self.key, **more}

    def client_context(
        self, common_name: str | None = None, organization: str = "Press"
    ) -> ssl.SSLContext:
        """Return the context of a client, with a certificate when it has a name."""
        context = ssl.create_default_context(cafile=self.ca_certificates)
        if common_name is not None:
            certificate = self._ca.issue_cert(
                "client@example.org", common_name=common_name, organization_name=organization
            )
            certificate.configure_cert(context)
        return context
