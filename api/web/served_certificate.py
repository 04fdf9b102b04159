"""The certificate that the API shows: read again when its files change."""

import asyncio
import logging
from typing import Final

from api.settings import ApiSettings
from mqlake.errors import OperationalError
from mqlake.security.tls import load_certificate, server_context

_logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0

_Mark = tuple[tuple[int, int, int], ...]


class ServedCertificate:
    """Certificate and key of the API.

    Attributes:
        context: TLS context of all connections. Those that are open keep the certificate they were
            shown.

    Args:
        settings: Name the files; `certificate` and `key` are set.

    Raises:
        OperationalError: The files cannot be used.
    """

    def __init__(self, settings: ApiSettings) -> None:
        assert settings.certificate is not None
        assert settings.key is not None
        self._certificate = settings.certificate
        self._key = settings.key
        self._password = settings.key_password.get_secret_value() if settings.key_password else ""
        self._version = settings.minimum_tls_version
        self._seen = self._look()
        self.context = server_context(self._certificate, self._key, self._password, self._version)
        self.context.set_alpn_protocols(["http/1.1"])

    async def follow(self) -> None:
        """Read the files again whenever they have changed, for as long as it is not cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await asyncio.to_thread(self.reload_changed)

    def reload_changed(self) -> None:
        """Read the files again if they have changed; keep the old ones when they are wrong."""
        found = self._look()
        if found == self._seen:
            return
        self._seen = found
        fields = {"certificate": str(self._certificate)}
        try:
            # Of files that do not fit together the context would be left with a half.
            server_context(self._certificate, self._key, self._password, self._version)
            load_certificate(self.context, self._certificate, self._key, self._password)
        except OperationalError as exc:
            fields["reason"] = str(exc)
            _logger.error("certificate not reloaded, the old one stays", extra={"fields": fields})
        else:
            _logger.info("certificate reloaded", extra={"fields": fields})

    def _look(self) -> _Mark:
        marks = []
        for path in (self._certificate, self._key):
            try:
                found = path.stat()
            except OSError:
                marks.append((0, 0, 0))
            else:
                marks.append((found.st_ino, found.st_mtime_ns, found.st_size))
        return tuple(marks)
