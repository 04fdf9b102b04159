"""Connections of the API's parts with the world."""

from collections.abc import Callable
from dataclasses import dataclass

from api.access.changes import PASSWORD_ROUNDS
from api.live.messages import MessageFeed
from api.live.outputs import OutputFeed
from api.log.appending import LogAppender
from api.messages.publishing import ApiPublisher
from api.messages.spans import TracingApiPublisher
from api.rules.changes import ANSWER_SECONDS
from api.settings import ApiSettings
from api.tracing.scan import KafkaScan, Scan
from mqlake.clock import Clock, SystemClock
from mqlake.processes.log_disk import LogDisk
from mqlake.processes.tracing import open_tracer

NAME = "api"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """Access of services to the world: the clock and the log. Tests have their own."""

    clock: Clock
    log: LogAppender
    publisher: ApiPublisher
    messages: MessageFeed
    outputs: OutputFeed
    open_scan: Callable[[], Scan]
    password_rounds: int = PASSWORD_ROUNDS
    answer_seconds: float = ANSWER_SECONDS
    """How long a change of a rule waits for the engine."""

    @classmethod
    def of(cls, settings: ApiSettings) -> "Edges":
        servers, disk = settings.log.servers, LogDisk(settings.log_disk)
        tracer = open_tracer(settings.tracing, NAME)
        return cls(
            clock=SystemClock(),
            log=LogAppender(servers, disk=disk),
            publisher=ApiPublisher(servers, disk)
            if tracer is None
            else TracingApiPublisher(servers, disk, tracer),
            messages=MessageFeed(servers),
            outputs=OutputFeed(servers),
            open_scan=lambda: KafkaScan(servers),
        )
