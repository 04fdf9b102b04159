"""Run the program that sends and receives messages."""

import json
import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from mqlake.errors import OperationalError

_GRACE_SECONDS: Final = 60.0
"""Limit of a run beyond its own seconds: for connecting, and giving up."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load of one run; the names are the loader's options. See the head of `loader.c`."""

    publish_to: Sequence[str] = ()
    """host:port of gateways; publishers take turns."""
    subscribe_to: Sequence[str] = ()
    publishers: int = 0
    subscribers: int = 0
    rate: float = 0.0
    """Messages a second of all publishers together; 0: as fast as the window allows."""
    window: int = 100
    """Unfinished messages of each publisher, when the rate is 0."""
    await_delivery: bool = False
    """A message is finished when it is delivered, not when it is acknowledged."""
    everyone: bool = False
    """Every subscriber gets every message; else each message goes to one subscriber."""
    subscribe_qos: int = 1
    """0 or 1; messages are published with QoS 1."""
    persistent: bool = False
    """Sessions of subscribers outlive their connections; they are ended after the run."""
    seconds: float = 5.0
    warmup_seconds: float = 1.0
    drain_seconds: float = 10.0
    payload_bytes: int = 100
    probes: int = 0
    """New filters to subscribe to, one after the other."""
    probe_interval_seconds: float = 0.02
    prefix: str = ""
    """First levels of the topics; by default new ones for each run."""
    answers: str = ""
    """Messages are JSON, and subscribers get outputs of rules on them, below this topic."""
    answered: int = 0
    """Publishers whose messages are answered; 0: all."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds."""

    count: int
    p50: float
    p95: float
    p99: float
    max: float
    p999: float | None = None
    """99.9 %; None when it was not looked at."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Result of the loader; rates and latencies without the warm-up, counts with it."""

    published: int
    acknowledged: int
    acknowledged_per_second: float
    expected: int
    delivered: int
    delivered_per_second: float
    lost: int
    duplicated: int
    out_of_order: int
    last_delivery_seconds_after_end: float
    longest_gap_ms: float
    """Longest time without any delivery, while there was something to deliver all the time."""
    ack_ms: Latency | None
    delivery_ms: Latency | None
    suback_ms: Latency | None

    @property
    def is_complete(self) -> bool:
        """Tell whether every message was acknowledged and came once and in order."""
        return (
            self.acknowledged == self.published
            and not self.lost
            and not self.duplicated
            and not self.out_of_order
        )

    def completed(self, what: str) -> "LoadResult":
        """Return it when it is complete; latencies of messages that came would hide the others.

        Raises:
            OperationalError: It is not; `what` says of which load.
        """
        if not self.is_complete:
            raise OperationalError(
                f"{what}: of {self.expected} messages {self.lost} were lost, {self.duplicated} "
                f"came twice, {self.out_of_order} out of order, "
                f"{self.published - self.acknowledged} were not acknowledged"
            )
        return self


def new_prefix() -> str:
    """Return first levels of topics that were never used."""
    return f"bench/{uuid.uuid4().hex[:12]}"


def run_load(command: Sequence[str], load: Load) -> LoadResult:
    """Put a load on and return its result.

    Raises:
        OperationalError: The loader could not do its work; the message is its own.
    """
    arguments = []
    for name, value in asdict(replace(load, prefix=load.prefix or new_prefix())).items():
        if isinstance(value, (str, list, tuple)):
            if not value:
                continue
            text = value if isinstance(value, str) else ",".join(value)
        else:
            text = str(int(value) if isinstance(value, bool) else value)
        arguments += [f"--{name.replace('_', '-')}", text]
    limit = load.warmup_seconds + load.seconds + load.drain_seconds + _GRACE_SECONDS
    try:
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired as exc:
        raise OperationalError(f"the loader did not end within {limit:.0f} s") from exc
    if done.returncode != 0:
        raise OperationalError(f"the loader gave up: {done.stderr.strip() or done.returncode}")
    return _parse(json.loads(done.stdout))


def _parse(answer: dict[str, Any]) -> LoadResult:
    for name in ("ack_ms", "delivery_ms", "suback_ms"):
        if answer[name] is not None:
            answer[name] = Latency(**answer[name])
    return LoadResult(**{field.name: answer[field.name] for field in fields(LoadResult)})
