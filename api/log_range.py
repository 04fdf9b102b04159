"""Look whether a stretch of the log holds messages: what the table of history may not have yet."""

import time
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from mqlake.errors import LogError
from mqlake.log.security import client_config
from mqlake.records import INBOUND, is_message

TIMEOUT_SECONDS: Final = 20.0
_BATCH: Final = 1_000


def has_messages(bootstrap_servers: str, tenant: str, partition: int, begin: int, end: int) -> bool:
    """Tell whether `mqlake.inbound` holds a tenant's message from one offset up to before another.

    Those of others do not count: they may have been deleted from the table, with their tenant.

    Raises:
        LogError: It does not answer.
    """
    consumer = Consumer(
        {
            **client_config(bootstrap_servers),
            "client.id": "mqlake-api",
            "group.id": "mqlake-api",  # librdkafka wants a name; nothing is committed
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    try:
        return _has_messages(consumer, tenant, partition, begin, end)
    except KafkaException as exc:
        raise LogError(f"reading {INBOUND}: {exc}", definite=True) from exc
    finally:
        consumer.close()


def _has_messages(consumer: Consumer, tenant: str, partition: int, begin: int, end: int) -> bool:
    place = TopicPartition(INBOUND, partition)
    first, _ = consumer.get_watermark_offsets(place, timeout=TIMEOUT_SECONDS)
    begin = max(begin, first)  # what is no longer in the log will not come into the table
    if begin >= end:
        return False
    consumer.assign([TopicPartition(INBOUND, partition, begin)])
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        for record in consumer.consume(_BATCH, timeout=0.2):
            error = record.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    return False
                continue  # librdkafka tries again by itself
            offset = record.offset()
            assert offset is not None
            if offset >= end:
                return False
            if _is_message(record, tenant.encode() + b"/"):
                return True
            if offset == end - 1:
                return False
    raise LogError(f"reading {INBOUND}: no answer within {TIMEOUT_SECONDS:g} s", definite=True)


def _is_message(record: KafkaMessage, prefix: bytes) -> bool:
    key = record.key()
    assert isinstance(key, bytes | None)
    if key is None or not key.startswith(prefix):
        return False
    headers: Any = record.headers()
    return is_message(key, dict(headers or ()))
