"""Ask a Kafka cluster how large the records of a log topic may be."""

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from mqlake.errors import LogError
from mqlake.log.kafka_errors import error_of
from mqlake.log.security import client_config

CLIENT_ID: Final = "mqlake-admin"


def record_limit(
    bootstrap_servers: str,
    log_topic: str,
    timeout_seconds: float,
    options: Mapping[str, Any] | None = None,
) -> int:
    """Return `max.message.bytes`, the most bytes of a batch. It blocks.

    Args:
        bootstrap_servers: host:port[,host:port…].
        log_topic: Of which.
        timeout_seconds: For the answer.
        options: Further ones of librdkafka, for a cluster that wants a login.

    Raises:
        LogError: The cluster does not answer in time, has no such log topic, or does not tell us.
    """
    doing = f"asking how large records of {log_topic} may be"
    client = AdminClient(
        {
            **client_config(bootstrap_servers),
            "client.id": CLIENT_ID,
            "log_level": 2,
            **(options or {}),
        }
    )
    resource = ConfigResource(ResourceType.TOPIC, log_topic)
    try:
        asked = client.describe_configs([resource], request_timeout=timeout_seconds)
        config = asked[resource].result(timeout_seconds)
    except KafkaException as exc:
        raise LogError(f"{doing}: {error_of(exc).str()}", definite=True) from exc
    except TimeoutError as exc:
        raise LogError(f"{doing}: no answer in {timeout_seconds:g} s", definite=False) from exc
    entry = config.get("max.message.bytes")
    if entry is None or not entry.value:
        raise LogError(f"{doing}: the answer does not say", definite=True)
    return int(entry.value)
