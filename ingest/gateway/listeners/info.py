"""The listener of a connection, as the connection sees it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ingest.gateway.listeners.tenancy import Tenancy
from ingest.gateway.settings.listeners import Identity


@dataclass(frozen=True, slots=True)
class ListenerInfo:
    """One listener, as its connections see it."""

    name: str
    """As configured, else its address."""
    kind: str
    """`tcp`, `tls`, `ws`, `wss` or `unix`."""
    address: str
    """URL, the host as configured."""
    protocol_levels: frozenset[int]
    """Levels of CONNECT packets that are welcome, among 3, 4 and 5."""
    max_connections: int | None = None
    """Kept by the listener itself."""
    use_identity_as_username: bool = False
    """A client's user name is that of its verified certificate, no other and not without one."""
    use_identity_as_client_id: bool = False
    """Its client identifier is that name, too."""
    identity: Identity = "common_name"
    """Field of a certificate that has that name."""
    authenticate_by: tuple[str, ...] = ()
    """Authenticators that are asked about clients; empty: those of the gateway."""
    tenancy: Tenancy | None = None
    """How its clients' tenants are found; None: all are the gateway's own."""
    connects_per_second: int = 0
    """0: any number."""
    limits: tuple[tuple[str, int], ...] = ()
    """Rates and stocks that its clients share, by kind."""


MakeConnection: TypeAlias = Callable[[ListenerInfo], asyncio.Protocol]
