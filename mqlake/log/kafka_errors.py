"""Meaning of librdkafka's error codes: is the record certainly not in the log?"""

from typing import Final

from confluent_kafka import KafkaError, KafkaException

from mqlake.errors import LogError

DEFINITE_CODES: Final = frozenset(
    {
        # Refused before it left this process.
        KafkaError._QUEUE_FULL,
        KafkaError._INVALID_ARG,
        KafkaError._PURGE_QUEUE,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        # Refused by the broker before it was written.
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.POLICY_VIOLATION,
    }
)
"""Codes after which the record is certainly not in the log.

Not among them, on purpose: a timeout (`_MSG_TIMED_OUT`, the request may have arrived),
`NOT_ENOUGH_REPLICAS_AFTER_APPEND` (it is in the leader's log) and `KAFKA_STORAGE_ERROR` (the disk
failed at an unknown point of the write).
"""

PASSING_CODES: Final = frozenset(
    {KafkaError._QUEUE_FULL, KafkaError._PURGE_QUEUE, KafkaError.NOT_ENOUGH_REPLICAS}
)
"""Those of them that are the log's fault, not the record's."""

BATCH_CODES: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
    }
)
"""Those that a broker gives for a whole batch when it does not take one record of it, or all of
them together."""

CONNECTION_CODES: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,  # it was never sent: what goes before has no answer
    }
)
"""Codes after which the same question may be asked again: no broker has answered it."""


def to_log_error(error: KafkaError, doing: str) -> LogError:
    """Translate an error reported for a record or by the client as a whole."""
    code = error.code()
    return LogError(
        f"{doing}: {error.str()} ({error.name()})",
        definite=code in DEFINITE_CODES,
        passing=code in PASSING_CODES,
        of_batch=code in BATCH_CODES,
    )


def error_of(exc: KafkaException) -> KafkaError:
    """Return the error in a `KafkaException`."""
    error: KafkaError = exc.args[0]
    return error
