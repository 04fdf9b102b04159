"""A client's connection, as the parts see it that send its packets and take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ingest.gateway.listeners.info import ListenerInfo
    from ingest.protocol.connection import ServerConnection
    from ingest.protocol.packets import Packet
    from ingest.protocol.reason_codes import ConnackReasonCode, DisconnectReasonCode
    from mqlake.rights.compiled import ClientRights


class Client(Protocol):
    """Implemented by `ingest.gateway.clients.connection.ClientConnection`, which describes it."""

    protocol: ServerConnection
    client_id: str
    tenant: str
    peer: str
    username: str | None
    principal: str | None
    listener: ListenerInfo
    rights: ClientRights | None
    is_writable: bool
    is_closing: bool

    @property
    def address(self) -> str: ...
    @property
    def connection_id(self) -> str: ...
    def write(self, data: bytes) -> None: ...
    def send(self, packet: Packet) -> None: ...
    def pause_reading(self, why: str) -> None: ...
    def resume_reading(self, why: str) -> None: ...
    def hear_in(self, *pauses: str) -> None: ...
    def close(
        self, reason_code: DisconnectReasonCode, *, log_reason: str, lingers: bool = False
    ) -> None: ...


class Newcomer(Client, Protocol):
    """The same before CONNACK."""

    def refuse(
        self, reason_code: ConnackReasonCode, reason: str, server_reference: str = ""
    ) -> None: ...
    def cut(self, reason: str) -> None: ...
