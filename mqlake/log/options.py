"""How clients of the log are set: librdkafka's options that all of them have."""

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError

from mqlake.log.security import client_config

MAX_RECORD_BYTES: Final = 8 * 1024 * 1024
"""As the broker's `message.max.bytes`."""

BATCH_BYTES: Final = 1_000_000
"""Largest batch, but for a record that is larger by itself; as librdkafka has it, and a little less
than what brokers take by default. A broker refuses a larger one as a whole."""

UNKNOWN_CODES: Final = frozenset(
    {
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""There is no such log topic or partition."""

LOST_CODES: Final = UNKNOWN_CODES | {KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET}
"""The follower begins again; after any other error librdkafka tries again by itself."""

_COMMON: Final[dict[str, Any]] = {
    "allow.auto.create.topics": False,
    "reconnect.backoff.max.ms": 1_000,
    # A broker that stands still, or whose machine does not answer, is waited for so long, not a
    # minute. After that the client asks who leads now.
    "socket.timeout.ms": 10_000,
    "log_level": 2,
}


def consumer_options(
    servers: str, client_id: str, others: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the options of a consumer to which partitions are assigned by hand.

    Args:
        servers: host:port[,host:port…].
        client_id: Name in the broker's logs and metrics.
        others: Further ones of librdkafka, or in place of these.
    """
    return {
        **client_config(servers),
        **_COMMON,
        "client.id": client_id,
        # librdkafka wants a name; nothing is committed.
        "group.id": "mqlake",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "error_cb": _ignore,
        **(others or {}),
    }


def producer_options(
    servers: str, client_id: str, others: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the options of a producer whose records are durable when they are reported.

    Args:
        servers: host:port[,host:port…].
        client_id: Name in the broker's logs and metrics.
        others: Further ones of librdkafka, or in place of these.
    """
    return {
        **client_config(servers),
        **_COMMON,
        "client.id": client_id,
        "acks": "all",
        "enable.idempotence": True,
        # Java's default: a key goes where the user's own Kafka programs would put it.
        "partitioner": "murmur2_random",
        # One: when the broker dies, the second of two may be sent again before the first. After
        # that error librdkafka counts from the start in all partitions, and records under way in
        # another may be stored twice. Records that come meanwhile make the next batch.
        "max.in.flight.requests.per.connection": 1,
        "message.max.bytes": MAX_RECORD_BYTES,
        "batch.size": BATCH_BYTES,
        # An unknown log topic is our mistake, not a broker that is about to learn of it.
        "topic.metadata.propagation.max.ms": 5_000,
        **(others or {}),
    }


def _ignore(_error: KafkaError) -> None:
    """Take librdkafka's errors of connections: it tries again by itself."""
