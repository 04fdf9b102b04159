"""Records as a feed hands them on."""

from dataclasses import dataclass
from typing import Any

from api.messages.messages import MessageMaker
from mqlake.clock import SystemClock

_MAKER = MessageMaker("local", 0, SystemClock())


@dataclass
class FakeRecord:
    key_: bytes
    value_: bytes | None
    headers_: Any
    offset_: int
    at_ms: int
    partition_: int = 0

    def partition(self) -> int:
        return self.partition_

    def offset(self) -> int:
        return self.offset_

    def key(self) -> bytes:
        return self.key_

    def value(self) -> bytes | None:
        return self.value_

    def headers(self) -> Any:
        return self.headers_

    def timestamp(self) -> tuple[int, int]:
        return 1, self.at_ms


def message(
    topic_name: str, payload: bytes = b"x", *, tenant: str = "default", offset: int = 0, **more: Any
) -> FakeRecord:
    """Return the record of a message."""
    made = _MAKER.make(tenant, topic_name, payload, qos=1, retain=False)
    at_ms = more.get("at_ms", made.timestamp_ms)
    return FakeRecord(made.key, made.value, made.headers, offset, at_ms)
