"""Who is let in by the log, and who is turned away."""

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from launcher.testing.systems import await_condition

SECONDS = 120.0
"""That a log may take for an answer."""


def lists_topics(config: Mapping[str, Any]) -> bool:
    return _lists(AdminClient({"log_level": 0, **config}), SECONDS)


def is_refused(config: Mapping[str, Any]) -> bool:
    """Wait until the log turns a client away; tell whether it gets no answer after that."""
    told: list[KafkaError] = []
    telling: dict[str, Any] = {"log_level": 0, **config, "error_cb": told.append}
    admin = AdminClient(telling)

    def is_told() -> bool:
        admin.poll(0.1)
        return bool(told)

    await_condition(is_told, "the log turns a client away", timeout_seconds=SECONDS)
    return not _lists(admin, 1.0)


def _lists(admin: AdminClient, seconds: float) -> bool:
    try:
        return bool(admin.list_topics(timeout=seconds).brokers)
    except KafkaException:
        return False
