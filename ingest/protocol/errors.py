"""Errors on the wire, by the peer's fault or by ours.

The names say the fault of the packet, as the specification does, hence no suffix `Error`.
"""


class ProtocolError(Exception):
    """Root of the errors of the codec, which knows no other part of mqlake."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol: close its network connection [MQTT5-4.13.1-1].

    Args:
        reason_code: For the 5.0 CONNACK (before the handshake is over) or DISCONNECT.
        message: Lower case, expected and got.
        clause: Normative statement such as `MQTT5-3.3.1-4`; the section number where the
            specification numbers no statement (`MQTT5-3.1.2.11.3`, and all of `MQTT31-…`).
    """

    def __init__(self, reason_code: int, message: str, clause: str) -> None:
        super().__init__(f"{message} [{clause}]")
        self.reason_code = reason_code
        self.message = message
        self.clause = clause


class MalformedPacket(RemoteProtocolError):  # noqa: N818
    """The bytes cannot be read as the packet they claim to be: reason code 0x81."""


class ProtocolViolation(RemoteProtocolError):  # noqa: N818
    """The packet can be read, but breaks a rule: 0x82 or a closer reason code."""


class PacketTooLarge(RemoteProtocolError):  # noqa: N818
    """The packet is larger than the receiver allows: 0x95, raised before its body is buffered.

    Of a CONNECT as much is awaited as shows its level: a 5.0 client can then get the reason.
    """


class UnsupportedProtocol(RemoteProtocolError):  # noqa: N818
    """A CONNECT of a protocol name or level that is not MQTT 3.1, 3.1.1 or 5.0: 0x84.

    The server may answer before it closes: CONNACK 0x01 to a packet that looks like 3.x
    (`protocol_level` below 5), CONNACK 0x84 otherwise. [MQTT311-3.1.2-2] [MQTT5-3.1.2-2]
    """

    def __init__(
        self,
        reason_code: int,
        message: str,
        clause: str,
        *,
        protocol_name: str = "",
        protocol_level: int = 0,
    ) -> None:
        super().__init__(reason_code, message, clause)
        self.protocol_name = protocol_name
        self.protocol_level = protocol_level


class LocalProtocolError(ProtocolError):
    """We asked for a packet that cannot be encoded; our bug, nothing was sent."""
