"""Spans of published messages, when traces are asked for; in place of the plain publisher."""

from collections.abc import Sequence

from api.messages.messages import MadeMessage
from api.messages.publishing import ApiPublisher, Placed
from mqlake.errors import LogError, MqlakeError, OperationalError
from mqlake.processes.log_disk import LogDisk
from mqlake.processes.tracing import Tracer
from mqlake.records.messages import HEADER_PROPERTIES, HEADER_TRACEPARENT, decode_properties


class TracingApiPublisher(ApiPublisher):
    """A publisher whose sampled messages bear a `traceparent`; spans end with the log's answer."""

    def __init__(self, servers: str, disk: LogDisk, tracer: Tracer) -> None:
        super().__init__(servers, disk)
        self._tracer = tracer

    async def publish(self, messages: Sequence[MadeMessage]) -> list[Placed]:
        spans = [
            self._tracer.begin("accept", "SERVER", traceparent_of(one), _known(one))
            for one in messages
        ]
        traced = [
            one if span is None else one._replace(headers=[*one.headers, self._tracer.header(span)])
            for one, span in zip(messages, spans, strict=True)
        ]
        errors: list[MqlakeError | None] = []
        try:
            placed = await super().publish(traced)
            errors += [one.error for one in placed]
        except (LogError, OperationalError) as exc:
            errors += [exc] * len(messages)
            raise
        finally:
            for span, error in zip(spans, errors, strict=False):
                if span is not None:
                    self._tracer.end(span, error)
        return placed

    async def close(self) -> None:
        await super().close()
        self._tracer.close()


def traceparent_of(message: MadeMessage) -> str | None:
    """Return the value of the user property of that name."""
    encoded = dict(message.headers).get(HEADER_PROPERTIES)
    properties = {} if encoded is None else decode_properties(encoded)
    pairs = properties.get("user_property", ())
    return next((value for name, value in pairs if name == HEADER_TRACEPARENT), None)


def _known(message: MadeMessage) -> dict[str, str | int]:
    topic_name = message.key.decode(errors="replace").partition("/")[2]
    return {
        "messaging.system": "mqtt",
        "messaging.destination.name": topic_name,
        "messaging.operation.name": "accept",
        "messaging.message.body.size": len(message.value),
    }
