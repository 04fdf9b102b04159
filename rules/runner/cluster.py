"""Kafka clusters that actions append to: writers, and what log topics take."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from mqlake.clock import Clock
from mqlake.log.admin import record_limit
from mqlake.log.kafka_writer import KafkaLogWriter
from mqlake.log.options import BATCH_BYTES
from rules.actions.log import KafkaConnection
from rules.runner.target import MAX_RECORD_BYTES, KafkaTarget

ASK_SECONDS: Final = 5.0


class KafkaCluster:
    """Keeps the contract `rules.runner.target.LogCluster`.

    Args:
        bootstrap_servers: host:port[,host:port…].
        client_id: Name in the broker's logs and metrics.
        delivery_timeout_seconds: After it a record not yet appended is reported as failed.
        options: Further ones of librdkafka, for a cluster that wants a login.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        client_id: str,
        delivery_timeout_seconds: float,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._servers = bootstrap_servers
        self._client_id = client_id
        self._delivery_timeout_seconds = delivery_timeout_seconds
        self._options = dict(options or {})

    def open_writer(self, batch_bytes: int = BATCH_BYTES) -> KafkaLogWriter:
        return KafkaLogWriter(
            self._servers,
            client_id=self._client_id,
            max_record_bytes=MAX_RECORD_BYTES,
            delivery_timeout_seconds=self._delivery_timeout_seconds,
            options={**self._options, "batch.size": batch_bytes},
        )

    async def record_limit(self, log_topic: str) -> int:
        return await asyncio.to_thread(
            record_limit, self._servers, log_topic, ASK_SECONDS, self._options
        )


CLUSTER_SECONDS: Final = 10.0
"""A cluster that is away must be reported in time for the lane to fall behind."""


def open_cluster(_name: str, settings: KafkaConnection, clock: Clock) -> KafkaTarget:
    cluster = KafkaCluster(
        settings.bootstrap_servers, "mqlake-rules", CLUSTER_SECONDS, _login(settings)
    )
    return KafkaTarget(cluster.open_writer(), cluster, clock)


def _login(settings: KafkaConnection) -> dict[str, Any]:
    options: dict[str, Any] = {"security.protocol": settings.security_protocol}
    if settings.ca_certificates is not None:
        options["ssl.ca.location"] = str(settings.ca_certificates)
    if settings.security_protocol.startswith("sasl"):
        password = ""
        if settings.password_file is not None:
            password = settings.password_file.read_text(encoding="utf-8").strip()
        elif settings.password is not None:
            password = settings.password.get_secret_value()
        options |= {
            "sasl.mechanism": settings.sasl_mechanism,
            "sasl.username": settings.user,
            "sasl.password": password,
        }
    return options
