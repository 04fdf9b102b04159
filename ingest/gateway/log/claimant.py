"""A client that waits for its session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ingest.gateway.base.client import Client
    from ingest.protocol.packets import Connect
    from ingest.protocol.reason_codes import ConnackReasonCode
    from mqlake.errors import LogError
    from mqlake.records.shards import Key


class Claimant(Protocol):
    """Implemented by `ingest.gateway.clients.opening.Opening`, which describes it."""

    key: Key
    connect: Connect

    @property
    def connection(self) -> Client: ...
    @property
    def is_kept(self) -> bool: ...
    def claimed_session(self) -> dict[str, Any] | None: ...
    def proceed(self, result: Any = None, error: LogError | None = None) -> None: ...
    def refuse(self, reason_code: ConnackReasonCode, reason: str) -> None: ...
    def cut(self, reason: str) -> None: ...
