"""What a replay does, made of what was asked for: at once, or when its job is resumed."""

from dataclasses import dataclass
from typing import Any, Final

from fastapi import Request

from api.cache import SessionCache
from api.jobs import Job, Work
from api.log import LogAppender
from api.messages import MessageMaker
from api.presence import Gateways
from api.replay.job import Replay
from api.replay.order import Order
from api.replay.targets import OneClient, Published, Target
from api.settings import ApiSettings
from api.sql.running import Limits, QueryRunner

REPLAY: Final = "replay"
"""Kind of these jobs."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a replay works with."""

    log: LogAppender
    servers: str
    maker: MessageMaker
    cache: SessionCache
    gateways: Gateways
    queries: QueryRunner
    settings: ApiSettings

    @classmethod
    def of(cls, request: Request, servers: str) -> "Parts":
        state = request.app.state
        return cls(
            log=state.log,
            servers=servers,
            maker=state.message_maker,
            cache=state.cache,
            gateways=state.gateways,
            queries=state.queries,
            settings=state.settings,
        )

    def target(self, order: Order, job_id: str) -> Target:
        """Return where the messages go.

        Raises:
            ReplayError: The client that is to get them is not connected.
        """
        if order.client_id is not None:
            return OneClient(
                *(self.log, self.servers, self.cache, self.gateways),
                *(order.tenant, order.client_id),
            )
        return Published(
            *(self.log, self.servers, self.maker, order.tenant, order.username, job_id),
            keep_retain=order.keep_retain,
        )


def replay_work(parts: Parts, order: Order) -> Work:
    """Return what carries an order out."""
    settings = parts.settings
    rows = settings.sql_max_rows if order.limit is None else order.limit
    limits = Limits(rows, settings.sql_max_seconds, settings.sql_max_bytes)

    def work(job: Job) -> dict[str, Any]:
        target = parts.target(order, job.id)
        return Replay(job, order, parts.queries, limits, target, settings.max_payload_bytes).run()

    return work
