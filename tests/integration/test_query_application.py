"""Queries have a Spark of their own: what they do to it nobody feels who sends messages."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx
import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from api.spark.connect import JOB_START_SECONDS, OutOfMemory, SparkConnect
from launcher.testing.systems import LocalSystem, await_condition
from tests.pace import within

pytestmark = [pytest.mark.system, pytest.mark.timeout(700)]

SLOW: Final = "SELECT count(*) FROM range(100000000000) WHERE pmod(hash(id), 7) = 8"
A_SECOND: Final = 20
"""Messages, at most."""
LONGEST_SECONDS: Final = 10.0
"""That a message may take, `within` what else the machine does; an engine that ends is away for
longer."""


def doubled() -> str:
    """Return a query that doubles 32 kB until they are a gigabyte.

    It is a constant: whoever answers computes it when the query is planned, no task does.
    """
    query = f"SELECT '{'x' * 32_000}' AS x FROM range(2)"
    for _ in range(15):
        query = f"SELECT concat(x, x) AS x FROM ({query})"
    return f"SELECT length(x) AS n FROM ({query})"


def ask(system: LocalSystem, path: str, body: dict[str, Any]) -> httpx.Response:
    """Ask, and follow Retry-After as the command line does: the machine may be busy."""
    deadline = time.monotonic() + 200
    while True:
        answer = httpx.post(
            f"{system.api_url}/api/v1{path}",
            json=body,
            headers={"Authorization": f"Bearer {system.api_token}"},
            timeout=300,
        )
        if "Retry-After" not in answer.headers or time.monotonic() > deadline:
            return answer
        time.sleep(int(answer.headers["Retry-After"]))


def ask_sql(system: LocalSystem, query: str, seconds: float = 60) -> httpx.Response:
    return ask(system, "/sql", {"query": query, "timeout_seconds": seconds})


def rows_by_sql(system: LocalSystem, query: str) -> Any:
    answer = ask_sql(system, query)
    assert answer.status_code == 200, answer.text
    return answer.json()["rows"]


def uses(system: LocalSystem) -> int:
    found: int = system.process("query")["figures"]["uses"]
    return found


class Traffic:
    """Messages from one gateway to the other, some a second, each with the time it was sent."""

    def __init__(self, system: LocalSystem) -> None:
        self.sent = 0
        self.seconds: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._publish)
        self._subscriber = mqtt.Client(CallbackAPIVersion.VERSION2, "isolation-sub")
        self._subscriber.on_message = self._take
        self._publisher = mqtt.Client(CallbackAPIVersion.VERSION2, "isolation-pub")
        self._subscriber.connect("127.0.0.1", system.mqtt_port)
        self._publisher.connect("127.0.0.1", system.mqtt_port + 1)
        subscribed = threading.Event()
        self._subscriber.on_subscribe = lambda *_: subscribed.set()
        self._subscriber.loop_start()
        self._subscriber.subscribe("isolation/#", 1)
        assert subscribed.wait(60)
        self._publisher.loop_start()
        self._thread.start()

    def _take(self, _client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        self.seconds.append(time.monotonic() - float(message.payload))

    def _publish(self) -> None:
        while not self._ended.wait(1 / A_SECOND):
            self._publisher.publish("isolation/a", repr(time.monotonic()), 1)
            self.sent += 1

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        try:
            await_condition(lambda: len(self.seconds) >= self.sent, "all that was sent")
        finally:
            for client in (self._publisher, self._subscriber):
                client.disconnect()
                client.loop_stop()


@contextmanager
def undisturbed(system: LocalSystem) -> Iterator[None]:
    """Have messages flow meanwhile, none lost or late, and the engine be the same afterwards."""
    before = system.process("router")
    traffic = Traffic(system)
    try:
        yield
    finally:
        traffic.end()
    after = system.process("router")
    for name in ("pid", "restarts"):
        assert after[name] == before[name]
    assert after["figures"]["java_pid"] == before["figures"]["java_pid"]
    assert len(traffic.seconds) == traffic.sent > 0
    assert max(traffic.seconds) < within(LONGEST_SECONDS)


# The client library asks a Spark that has ended again, and warns when it gives up.
@pytest.mark.filterwarnings("ignore:.*RETRIES_EXCEEDED:UserWarning")
@pytest.mark.campaign("the killed Spark shows that it stands by itself")
def test_who_asks_for_too_much_harms_nobody_but_himself(system: LocalSystem) -> None:
    assert rows_by_sql(system, "SELECT 1 AS one") == [[1]]
    await_condition(lambda: uses(system) == 0, "nobody else asks")
    with undisturbed(system):
        answer = ask_sql(system, doubled(), seconds=240)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_query"), answer.text
        # What the checker refuses is asked all the same.
        connect = SparkConnect(system.data_dir)
        with (
            pytest.raises(OutOfMemory, match="its heap of 640 MiB was full"),
            connect.use(JOB_START_SECONDS) as use,
        ):
            connect.open({}, use).rows(doubled(), 240)
        late = ask_sql(system, SLOW, seconds=3)
        assert (late.status_code, late.json()["code"]) == (422, "query_timeout")
        large = f"concat({', '.join(['payload'] * 100)})"
        rule = f"SELECT {', '.join(f'{large} AS x{at}' for at in range(16))} FROM 'a'"
        trial = {"sql": rule, "context": {"topic": "a", "payload": "x" * 600_000}}
        tried = ask(system, "/rule_test", trial)
        assert tried.status_code == 503 or tried.json().get("error"), tried.text
    assert rows_by_sql(system, "SELECT 1 AS one") == [[1]]
    assert system.process("query")["figures"]["ends"]["memory"] >= 1


@pytest.mark.campaign("tests/streaming/test_sql.py kills the Spark of its sessions")
def test_spark_that_is_killed_in_a_query_is_back_for_the_next(system: LocalSystem) -> None:
    assert rows_by_sql(system, "SELECT 1 AS one") == [[1]]
    await_condition(lambda: uses(system) == 0, "nobody else asks")
    answers: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: answers.append(ask_sql(system, SLOW)))
    with undisturbed(system):
        asking.start()
        await_condition(lambda: uses(system) == 1, "it is asked")
        java_pid = system.process("query")["figures"]["java_pid"]
        os.kill(java_pid, signal.SIGKILL)
        asking.join(180)
        (answer,) = answers
        assert answer.status_code == 503
        assert "it was killed by signal 9" in answer.json()["detail"]
        assert rows_by_sql(system, "SELECT 2 AS two") == [[2]]
    assert system.process("query")["restarts"] == 0, "its keeper goes on"
