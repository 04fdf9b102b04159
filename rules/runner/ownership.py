"""One runner works, others stand by: the owner of the one partition of `mqlake.runner` works.

The consumer group protocol of the log decides. The name of a runner is its static membership: one
that is started again under its name goes on at once, also after it was killed; one that has ended
for good is replaced by one of another name when the session has timed out. Of two under one name
on one machine the second refuses to start; on two machines the log shuts the older out, and it
ends.
"""

import asyncio
import socket
import threading
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from mqlake.errors import OperationalError
from mqlake.log.security import client_config

GROUP: Final = "mqlake.runner"
SESSION_TIMEOUT_MS: Final = 10_000
POLL_SECONDS: Final = 0.2


def hold_name(bootstrap_servers: str, name: str) -> socket.socket:
    """Return a socket that holds the name on this machine until it is closed or the process ends.

    Raises:
        OperationalError: Another process holds it.
    """
    digest = blake2b(f"{bootstrap_servers}/{name}".encode(), digest_size=16).hexdigest()
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # A name that begins with a zero byte is no file; it needs no removal.
        holder.bind(f"\0mqlake/runner/{digest}")
    except OSError as exc:
        holder.close()
        raise OperationalError(
            f"a runner called {name} works here already; give this one another name "
            "(MQLAKE_RULES_NAME) to let it stand by"
        ) from exc
    return holder


class Ownership:
    """Membership of the group. Make it inside the event loop.

    Args:
        bootstrap_servers: host:port[,host:port…].
        name: Name of this runner.
        log_topic: Its one partition is held; nothing is read from it here.
        on_lost: Called in the loop, with the reason, when another runner works from now on.
    """

    def __init__(
        self, bootstrap_servers: str, name: str, log_topic: str, on_lost: Callable[[str], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._options: dict[str, Any] = {
            **client_config(bootstrap_servers),
            "client.id": name,
            "group.id": GROUP,
            "group.instance.id": name,
            # One that comes takes nothing from the one that works.
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": 2_000,
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
            "allow.auto.create.topics": False,
            "reconnect.backoff.max.ms": 1_000,
            "log_level": 2,
            "error_cb": self._take_error,
        }
        self._log_topic = log_topic
        self._on_lost = on_lost
        self._held = asyncio.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="ownership", daemon=True)

    async def acquire(self) -> None:
        """Wait until this runner is the one that works."""
        self._thread.start()
        await self._held.wait()

    async def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    def _poll(self) -> None:
        consumer = Consumer(self._options)
        consumer.subscribe(
            [self._log_topic],
            on_assign=self._take_assignment,
            on_revoke=self._take_revocation,
            on_lost=self._take_revocation,
        )
        try:
            while not self._stop.is_set():
                message = consumer.poll(POLL_SECONDS)
                if message is not None and (error := message.error()) is not None:
                    self._take_error(error)
        except KafkaException as exc:
            self._take_error(exc.args[0])
        finally:
            # A static member does not leave the group by this: started again it goes on at once.
            consumer.close()

    def _take_assignment(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if partitions:
            self._tell(self._held.set)

    def _take_revocation(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if partitions and not self._stop.is_set():
            self._tell(self._on_lost, "another runner works from now on")

    def _take_error(self, error: KafkaError) -> None:
        if error.code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID) or error.fatal():
            self._tell(self._on_lost, f"another runner has taken the name: {error.str()}")

    def _tell(self, callback: Callable[..., Any], *arguments: Any) -> None:
        if not self._stop.is_set() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *arguments)
