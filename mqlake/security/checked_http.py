"""Connections to web servers that users name: to addresses that were checked, no others."""

import asyncio
import ssl
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from socket import SOCK_STREAM
from typing import Any

import httpcore

from mqlake.errors import MqlakeError
from mqlake.security.addresses import is_public


class AddressRefused(MqlakeError):  # noqa: N818 - it names the thing refused
    """A server is at an address to which no request may go."""


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Opens connections to addresses that have been checked, and to no others.

    Args:
        setting: Which allows addresses that are not public, for the error.
        allowed_networks: Which those are.
        allow_internal: Whether all addresses are allowed.
    """

    def __init__(
        self,
        setting: str,
        allowed_networks: Sequence[IPv4Network | IPv6Network],
        *,
        allow_internal: bool = False,
    ) -> None:
        self._setting = setting
        self._allowed_networks = allowed_networks
        self._allow_internal = allow_internal
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address of a host that answers.

        Raises:
            AddressRefused: One of them is not public.
            ConnectError: httpcore's; there is no allowed address, or none that answers.
        """
        addresses = await self._addresses(host, port)
        problem: Exception | None = None
        for address in addresses:
            try:
                return await self._backend.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except httpcore.ConnectError as exc:
                problem = exc
        raise httpcore.ConnectError(f"{host}:{port}: {problem}") from problem

    async def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        raise AddressRefused("no request goes to a Unix socket")

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)

    async def _addresses(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host; one that is not public spoils all of them."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host.strip("[]"), port, type=SOCK_STREAM)
        except (OSError, UnicodeError) as exc:
            raise httpcore.ConnectError(f"{host}: {exc}") from exc
        addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
        if not self._allow_internal:
            for address in addresses:
                if not is_public(address, self._allowed_networks):
                    raise AddressRefused(
                        f"{host} is the address {address}, which is not public; "
                        f"{self._setting} in the settings of the process allows such"
                    )
        return addresses


@lru_cache(maxsize=8)
def make_ssl_context(ca_certificates: Path | None, *, verify: bool = True) -> ssl.SSLContext:
    """Return a context; reading the machine's authorities takes long, so they are shared."""
    context = ssl.create_default_context()
    if ca_certificates is not None:
        context.load_verify_locations(cafile=ca_certificates)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
