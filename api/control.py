"""What the API asks of a gateway: a record in the log that the gateway reads with its deliveries.

Nothing comes back; the gateway's log says what it did.
"""

import threading
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from mqlake.errors import LogError
from mqlake.records import CONTROL_KEY_PREFIX, delivery_topic

TIMEOUT_SECONDS: Final = 10.0


class GatewayControl:
    """Sends control records; safe to use from any thread."""

    def __init__(self, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._timeout = timeout_seconds
        self._lock = threading.Lock()
        self._servers = ""
        self._producer: Producer | None = None

    def send(self, bootstrap_servers: str, gateway: str, action: str) -> None:
        """Append a control record and wait until the log has it.

        Raises:
            LogError: It does not answer in time, or refuses.
        """
        refused: list[KafkaError] = []

        def report(error: KafkaError | None, _record: Any) -> None:
            if error is not None:
                refused.append(error)

        producer = self._producer_for(bootstrap_servers)
        try:
            producer.produce(
                delivery_topic(gateway),
                key=CONTROL_KEY_PREFIX + action.encode(),
                value=b"{}",
                on_delivery=report,
            )
        except (KafkaException, BufferError) as exc:
            raise LogError(f"control record for {gateway}: {exc}", definite=True) from exc
        if producer.flush(self._timeout):
            raise LogError(
                f"control record for {gateway}: no answer from {bootstrap_servers} within "
                f"{self._timeout:g} s",
                definite=False,
            )
        if refused:
            raise LogError(f"control record for {gateway}: {refused[0].str()}", definite=True)

    def _producer_for(self, bootstrap_servers: str) -> Producer:
        """Return the one producer; another one when the log has moved since."""
        with self._lock:
            if self._producer is None or self._servers != bootstrap_servers:
                self._servers = bootstrap_servers
                self._producer = Producer(
                    {
                        "bootstrap.servers": bootstrap_servers,
                        "client.id": "mqlake-api",
                        "acks": "all",
                        "message.timeout.ms": round(self._timeout * 1000),
                        "log_level": 2,
                    }
                )
            return self._producer
