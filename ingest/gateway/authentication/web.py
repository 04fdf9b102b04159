"""Web servers that are asked about clients, or for keys: an answer within bounds, or none."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import httpcore

from ingest.gateway.authentication.outcomes import Refused
from ingest.protocol.reason_codes import ConnackReasonCode
from mqlake.errors import MqlakeError
from mqlake.security.checked_http import AddressRefused, CheckedBackend, make_ssl_context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingest.gateway.settings.authenticators import WebServerSettings

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS: Final = 30.0
MAX_REASON: Final = 500
"""Characters of an error of others that are written to the log."""

NO_ANSWER: Final = Refused(
    ConnackReasonCode.SERVER_UNAVAILABLE, "the authenticator does not answer"
)
BUSY: Final = Refused(ConnackReasonCode.SERVER_BUSY, "too many clients to ask about")


class NoAnswer(MqlakeError):  # noqa: N818 - it names the missing thing
    """A server did not answer, or not as expected; says why, and nothing of a client."""


class WebServer:
    """Answers requests.

    Args:
        name: Name of the authenticator that asks it.
        url: URL of the server.
        settings: Time-outs and certificates for it.
        max_requests: Requests at the same time; further ones wait.
        headers: Headers of each request.
    """

    def __init__(
        self,
        name: str,
        url: str,
        settings: WebServerSettings,
        max_requests: int,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self._url = url
        self._timeout_seconds = settings.timeout_seconds
        self._headers = [(b"Host", url.split("/", 3)[2].encode()), *headers]
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=make_ssl_context(settings.ca_certificates),
            max_connections=max_requests,
            max_keepalive_connections=max_requests,
            keepalive_expiry=KEEP_ALIVE_SECONDS,
            http2=False,
            retries=0,
            network_backend=CheckedBackend(
                f"authenticators.{name}.allowed_networks", settings.allowed_networks
            ),
        )

    async def ask(self, method: str, body: bytes | None, max_bytes: int) -> bytes:
        """Return the body of an answer 200.

        Args:
            method: Method of HTTP.
            body: Body of the request.
            max_bytes: Largest answer.

        Raises:
            NoAnswer: There is none, another, a larger one, or none in time.
        """
        timeout = self._timeout_seconds
        timeouts = dict.fromkeys(("connect", "read", "write", "pool"), timeout)
        try:
            async with (
                asyncio.timeout(timeout),
                self._pool.stream(
                    method,
                    self._url,
                    headers=self._headers,
                    content=body,
                    extensions={"timeout": timeouts},
                ) as response,
            ):
                answer = bytearray()
                async for chunk in response.aiter_stream():
                    answer += chunk
                    if len(answer) > max_bytes:
                        raise NoAnswer(f"its answer has more than {max_bytes} bytes")
                if response.status != 200:
                    raise NoAnswer(f"its answer has the status {response.status}, expected 200")
                return bytes(answer)
        except (TimeoutError, httpcore.TimeoutException) as exc:
            raise NoAnswer(f"no answer within {timeout:g} s") from exc
        except AddressRefused as exc:
            raise NoAnswer(str(exc)) from exc
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as exc:
            raise NoAnswer(f"no answer: {exc!r}"[:MAX_REASON]) from exc

    async def close(self) -> None:
        await self._pool.aclose()


class Answering:
    """Logs that a server does not answer, once, and that it does again.

    Args:
        name: Name of the authenticator.

    Attributes:
        is_silent: There was no answer the last time.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.is_silent = False

    def note_answer(self) -> None:
        if self.is_silent:
            self.is_silent = False
            fields = {"authenticator": self._name}
            logger.info("an authenticator answers again", extra={"fields": fields})

    def note_silence(self, reason: str) -> None:
        fields = {"authenticator": self._name, "reason": reason}
        level = logging.DEBUG if self.is_silent else logging.WARNING
        logger.log(level, "an authenticator does not answer", extra={"fields": fields})
        self.is_silent = True
