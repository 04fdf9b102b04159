"""How long the REST API takes: to publish, and to show published messages."""

import contextlib
import http.client
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from bench.load.loader import Latency
from bench.results.figures import Figures, percentiles
from bench.systems.system import Bench
from mqlake.api_client import TOKEN_FILE, api_context
from mqlake.errors import OperationalError

PACE: Final = 100.0
"""Requests a second."""
WARMUP: Final = 100
REQUESTS: Final = 1_000
LAST_SECONDS: Final = 5.0
"""How long the last message may take to be shown."""
TOPIC: Final = "bench/live"


def measure_api_publish(bench: Bench) -> Figures:
    """POST /publish over one connection, 100 a second; each answer says that the log has it."""
    bench.await_quiet()
    connection = _Connection(bench)
    latencies = [(done - sent) * 1000 for sent, done in connection.publish(WARMUP + REQUESTS)]
    connection.close()
    return percentiles("REST publish at 100/s", _latency(latencies[WARMUP:]))


def measure_live_feed(bench: Bench) -> Figures:
    """From the POST of a message to its event in a live stream, at 100 messages a second."""
    bench.await_quiet()
    connection = _Connection(bench)
    reader = _LiveReader(bench)
    try:
        sent_at = [sent for sent, _ in connection.publish(WARMUP + REQUESTS)]
        seen_at = reader.take(WARMUP + REQUESTS)
    finally:
        connection.close()
        reader.close()
    delays = [(seen_at[number] - sent) * 1000 for number, sent in enumerate(sent_at)]
    return percentiles("live feed at 100/s, publish to event", _latency(delays[WARMUP:]))


class _Connection:
    """A connection to the API that stays open."""

    def __init__(self, bench: Bench) -> None:
        self._http, self._headers = _open(bench)

    def publish(self, count: int) -> list[tuple[float, float]]:
        """Publish numbered messages at the pace; return when each was sent and answered."""
        times = []
        begin = time.perf_counter()
        for number in range(count):
            time.sleep(max(0.0, begin + number / PACE - time.perf_counter()))
            body = json.dumps({"topic_name": TOPIC, "payload": str(number), "qos": 1})
            sent = time.perf_counter()
            self._http.request("POST", "/api/v1/publish", body, self._headers)
            answer = self._http.getresponse()
            data = answer.read()
            times.append((sent, time.perf_counter()))
            if answer.status != http.HTTPStatus.OK:
                raise OperationalError(f"the API answers {answer.status}: {data.decode()}")
        return times

    def close(self) -> None:
        self._http.close()


class _LiveReader:
    """Reads a live stream on a thread and notes when each message comes."""

    def __init__(self, bench: Bench) -> None:
        self._http, headers = _open(bench)
        self._http.request(
            "GET", f"/api/v1/live/messages?max_rate=1000&topic_filter={quote(TOPIC)}", None, headers
        )
        self._answer = self._http.getresponse()
        if self._answer.status != http.HTTPStatus.OK:
            raise OperationalError(f"the API answers {self._answer.status} to a live stream")
        self._answer.readline()  # that it is connected
        self._seen: dict[int, float] = {}
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def take(self, count: int) -> dict[int, float]:
        """Return when each message came.

        Raises:
            OperationalError: Some did not.
        """
        deadline = time.monotonic() + LAST_SECONDS
        while len(self._seen) < count:
            if time.monotonic() > deadline:
                raise OperationalError(f"of {count} messages {len(self._seen)} were shown")
            time.sleep(0.05)
        return self._seen

    def close(self) -> None:
        self._http.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._answer.close()
        self._http.close()

    def _read(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):  # cut off by `close`
            for line in self._answer:
                if line.startswith(b"data: "):
                    self._note(json.loads(line[6:]), time.perf_counter())

    def _note(self, said: dict[str, Any], now: float) -> None:
        if said.get("topic_name") == TOPIC:
            self._seen[int(said["payload"])] = now


def _open(bench: Bench) -> tuple[http.client.HTTPConnection, dict[str, str]]:
    address = urlsplit(bench.state.api_url)
    token = Path(bench.data_dir / TOKEN_FILE).read_text(encoding="ascii").strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    context = api_context(bench.state)
    if context is not None:
        return http.client.HTTPSConnection(address.netloc, timeout=30, context=context), headers
    return http.client.HTTPConnection(address.netloc, timeout=30), headers


def _latency(values: list[float]) -> Latency:
    found = sorted(values)

    def at(share: float) -> float:
        return found[min(len(found) - 1, int(share * len(found)))]

    return Latency(len(found), p50=at(0.5), p95=at(0.95), p99=at(0.99), max=found[-1])
