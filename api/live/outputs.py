"""Outputs of rules as they come into `mqlake.outputs`."""

import json
import logging
import threading
from collections.abc import Sequence
from typing import Any, Final

from api.live.feed import Feed, Record
from api.live.stream import Event, LiveStream
from api.messages.messages import show_time
from mqlake.errors import InvalidRecord
from mqlake.records.messages import OUTPUTS
from mqlake.records.outputs import Output, decode_output, rule_record_key

_logger = logging.getLogger(__name__)

_RECORD_BYTES: Final = 500
"""Beside the row, about."""


class OutputFeed(Feed):
    """Reads `mqlake.outputs` while a stream is open."""

    def __init__(self, servers: str) -> None:
        super().__init__(servers, OUTPUTS)
        self._streams_lock = threading.Lock()
        self._streams: dict[LiveStream, tuple[str, str | None]] = {}

    def add(self, tenant: str, rule_id: str | None, stream: LiveStream) -> None:
        """Offer a stream the outputs of a rule; None: of all of the tenant."""
        with self._streams_lock:
            self._streams[stream] = (tenant, rule_id)

    def remove(self, stream: LiveStream) -> None:
        with self._streams_lock:
            del self._streams[stream]

    def forget(self) -> None:
        """Nothing is remembered."""

    def receive(self, records: Sequence[Record]) -> None:
        with self._streams_lock:
            wanted = {
                stream: (f"{tenant}/".encode(), rule_id and rule_record_key(tenant, rule_id))
                for stream, (tenant, rule_id) in self._streams.items()
            }
        woken: dict[LiveStream, None] = {}
        for record in records:
            key = record.key() or b""
            size = _RECORD_BYTES + len(record.value() or b"")
            for stream, (prefix, whole) in wanted.items():
                fits = key == whole if whole else key.startswith(prefix)
                if fits and stream.offer(record, size):
                    woken[stream] = None
        for stream in woken:
            stream.wake()


def output_event(record: Record) -> Event:
    """Return an output as its readers get it; an empty one for a record that is none."""
    try:
        output = decode_output(record.key(), record.value(), record.headers() or [])
        return "output", show_output(output)
    except (InvalidRecord, ValueError) as exc:
        _logger.debug("output not shown", extra={"fields": {"reason": str(exc)}})
        return "output", {}


def show_output(output: Output) -> dict[str, Any]:
    return {
        "tenant": output.tenant,
        "rule_id": output.rule,
        "version": output.version,
        "row": json.loads(output.row),
        "topic_name": output.topic_name,
        "client_id": output.client_id,
        "message_id": None if output.message_id is None else output.message_id.hex(),
        "received_at": show_time(output.received_at_ms),
        "output_id": f"{output.rule}/{output.version}/{output.position}",
    }
