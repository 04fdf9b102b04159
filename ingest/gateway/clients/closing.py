"""Properties of a CONNACK that refuses a client, and of a DISCONNECT from our side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingest.protocol.reason_codes import ConnackReasonCode, DisconnectReasonCode

if TYPE_CHECKING:
    from ingest.protocol.properties import Properties

DENIED: Final[frozenset[int]] = frozenset(
    {
        ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD,
        ConnackReasonCode.NOT_AUTHORIZED,
        ConnackReasonCode.BANNED,
    }
)
"""Answers to clients that may not connect, or not so."""

_ELSEWHERE: Final[frozenset[int]] = frozenset(
    {DisconnectReasonCode.USE_ANOTHER_SERVER, DisconnectReasonCode.SERVER_MOVED}
)
"""Reasons that come with a Server Reference (5.0: 4.13)."""


def reason_properties(reason_code: int, reason: str, server_reference: str) -> Properties:
    """Return the properties of a CONNACK or DISCONNECT.

    Args:
        reason_code: Reason code of the packet.
        reason: Reason String, for people.
        server_reference: Server that the client may use instead, sent if the reason code is about
            that; "": no server.
    """
    properties: Properties = {"reason_string": reason}
    if server_reference and reason_code in _ELSEWHERE:
        properties["server_reference"] = server_reference
    return properties
