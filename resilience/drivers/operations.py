"""A client's operations in the words of the history, the same for every driver."""

from typing import Any

from resilience.drivers.frames import ConnectOptions
from resilience.history import Writer, decode_payload


class Operations:
    """Writes the operations of one client.

    Args:
        name: The process in the history, and the prefix of its identifiers.
        history: Gets the operations.

    Attributes:
        connection: Counts the connections; every operation says under which one it was.
    """

    def __init__(self, name: str, history: Writer) -> None:
        self._name = name
        self._history = history
        self.connection = 0
        self._requests_made = 0

    def write(self, f: str, type_: str, **fields: Any) -> None:
        self._history.write(self._name, f, type_, connection=self.connection, **fields)

    def connect(self, options: ConnectOptions) -> str:
        """Begin another connection; return the identifier of its will, if it has one."""
        self.connection += 1
        is_5 = options.version == 5
        will = options.will
        will_id = f"{self._name}/w{self.connection}"
        self.write(
            "connect",
            "invoke",
            client_id=options.client_id,
            tenant=options.tenant or None,
            node=options.node,
            version=options.version,
            clean=options.clean,
            expiry=options.expiry if is_5 else None,
            keep_alive=options.keep_alive,
            receive_maximum=options.receive_maximum if is_5 else None,
            will=None
            if will is None
            else {
                "id": will_id,
                "topic": will.topic,
                "qos": will.qos,
                "retain": will.retain,
                "delay": will.delay if is_5 else 0,
            },
        )
        return will_id

    def publish(
        self,
        message_id: str,
        topic: str,
        *,
        qos: int,
        retain: bool,
        empty: bool,
        expiry: int | None,
    ) -> None:
        """Begin to publish."""
        self.write(
            "publish",
            "invoke",
            id=message_id,
            topic=topic,
            qos=qos,
            retain=retain or None,
            empty=empty or None,
            expiry=expiry,
        )

    def request(self, f: str, topic_filter: str, fields: dict[str, Any]) -> str:
        """Begin SUBSCRIBE or UNSUBSCRIBE; return the identifier of the operation."""
        self._requests_made += 1
        request_id = f"{f[0]}{self._requests_made}"
        self.write(f, "invoke", id=request_id, filter=topic_filter, **fields)
        return request_id

    def receive(
        self,
        payload: bytes,
        topic: str,
        *,
        qos: int,
        dup: bool,
        retain: bool,
        packet_id: int,
        again: bool = False,
    ) -> str | None:
        """Note a message; return its identifier, None if the payload has none.

        With ``again``, it is the same exchange of QoS 2 as before.
        """
        message_id = decode_payload(payload)
        self.write(
            "receive",
            "info" if again else "ok",
            id=message_id or ("?" if payload else ""),
            damaged=None if message_id or not payload else True,
            topic=topic,
            qos=qos,
            dup=dup or None,
            retain=retain or None,
            packet_id=packet_id or None,
        )
        return message_id
