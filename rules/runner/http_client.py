"""Requests on behalf of rules: no redirects, no proxies, no cookies, checked addresses only."""

import asyncio
from typing import Final

import httpcore

from mqlake.clock import Clock
from mqlake.retry_after import retry_after
from mqlake.security.checked_http import AddressRefused, CheckedBackend, make_ssl_context
from rules.actions.contract import ActionError, Failure, Request
from rules.runner.settings import HttpSettings

KEEP_ALIVE_SECONDS: Final = 30.0
MAX_READ_BYTES: Final = 64 * 1024
"""Longest part of an answer that is read; a longer one costs the connection."""
MAX_TOLD_CHARACTERS: Final = 200

UNAVAILABLE_STATUS: Final = frozenset({408, 425, 429, 502, 503, 504})
"""Answers that say nothing of the request."""


class HttpClientPool:
    """Connections of one action, to one server. Keeps the contract `HttpClient`."""

    def __init__(
        self,
        settings: HttpSettings,
        clock: Clock,
        *,
        concurrency: int,
        timeout_seconds: float,
        verify_tls: bool,
    ) -> None:
        self._clock = clock
        self._not_before = clock.monotonic()
        self._timeout_seconds = timeout_seconds
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=make_ssl_context(settings.ca_certificates, verify=verify_tls),
            max_connections=concurrency,
            max_keepalive_connections=concurrency,
            keepalive_expiry=KEEP_ALIVE_SECONDS,
            http2=False,
            retries=0,
            network_backend=CheckedBackend(
                "http.allowed_networks",
                settings.allowed_networks,
                allow_internal=settings.allow_internal_addresses,
            ),
        )

    async def send(self, request: Request) -> None:
        """Send a request and wait until it is answered with 2xx.

        Nothing is sent before the time that the server has asked for (`Retry-After`).

        Raises:
            ActionError: It was not.
        """
        left = self._not_before - self._clock.monotonic()
        if left > 0:
            raise ActionError(
                f"the server asks for no request before {left:.1f} s have passed",
                Failure.UNAVAILABLE,
                retry_after_seconds=left,
            )
        timeouts = dict.fromkeys(("connect", "read", "write", "pool"), self._timeout_seconds)
        headers = [("Host", _host(request.url)), *request.headers]
        try:
            async with (
                asyncio.timeout(self._timeout_seconds),
                self._pool.stream(
                    request.method,
                    request.url,
                    headers=[(name.encode(), value.encode()) for name, value in headers],
                    content=request.body or None,
                    extensions={"timeout": timeouts},
                ) as response,
            ):
                text = await _read(response)
        except AddressRefused as exc:
            raise ActionError(str(exc)) from exc
        except TimeoutError as exc:
            raise ActionError(
                f"no answer within {self._timeout_seconds:g} s", Failure.UNAVAILABLE
            ) from exc
        except (httpcore.UnsupportedProtocol, httpcore.LocalProtocolError) as exc:
            told = "" if request.has_secrets else f": {exc}"
            raise ActionError(f"request is not valid{told}") from exc
        except httpcore.TimeoutException as exc:
            raise ActionError(
                f"no answer within {self._timeout_seconds:g} s", Failure.UNAVAILABLE
            ) from exc
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as exc:
            raise ActionError(f"no answer: {exc!r}"[:500], Failure.UNAVAILABLE) from exc
        self._check_status(response, "" if request.has_secrets else text)

    async def close(self) -> None:
        await self._pool.aclose()

    def _check_status(self, response: httpcore.Response, text: str) -> None:
        status = response.status
        if 200 <= status < 300:
            return
        told = " ".join(text.split())[:MAX_TOLD_CHARACTERS]
        message = f"answer {status}" + (f": {told}" if told else "")
        if status not in UNAVAILABLE_STATUS:
            raise ActionError(message, Failure.FAILED if status >= 500 else Failure.REFUSED)
        seconds = retry_after(response.headers, self._clock.now_ms())
        self._not_before = max(self._not_before, self._clock.monotonic() + seconds)
        raise ActionError(message, Failure.UNAVAILABLE, retry_after_seconds=seconds)


async def _read(response: httpcore.Response) -> str:
    """Read the answer to its end if that is near, so that the connection can be used again."""
    read = bytearray()
    async for chunk in response.aiter_stream():
        read += chunk
        if len(read) > MAX_READ_BYTES:
            break
    return read[: MAX_TOLD_CHARACTERS * 4].decode(errors="replace")


def _host(url: str) -> str:
    return url.split("/", 3)[2]
