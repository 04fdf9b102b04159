"""The work of a replay, made of its request: at once, or when its job is resumed."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from api.access.callers import Callers
from api.clients.cache import SessionCache
from api.clients.presence import Gateways
from api.jobs.jobs import Job, Work
from api.log.appending import LogAppender
from api.messages.messages import MessageMaker
from api.replay.job import Replay
from api.replay.order import ReplayOrder
from api.replay.rights import check_rights
from api.replay.rows import MessageLimits
from api.replay.targets import OneClient, Published, ReplayTarget
from api.settings import ApiSettings
from api.sql.running import QueryLimits, QueryRunner

REPLAY: Final = "replay"
"""Kind of these jobs."""


@dataclass(frozen=True, slots=True)
class ReplayParts:
    """Parts that a replay needs."""

    log: LogAppender
    maker: MessageMaker
    cache: SessionCache
    gateways: Gateways
    queries: QueryRunner
    settings: ApiSettings
    callers: Callers

    def target(self, order: ReplayOrder, job_id: str) -> ReplayTarget:
        """Return the target of the messages.

        Raises:
            ReplayError: The client that is to get them is not connected.
        """
        if order.client_id is not None:
            return OneClient(self.log, self.cache, self.gateways, order.tenant, order.client_id)
        return Published(
            self.log,
            self.maker,
            order.tenant,
            order.username,
            job_id,
            keep_retain=order.keep_retain,
        )


def replay_work(parts: ReplayParts, order: ReplayOrder) -> Work:
    """Return the work that carries an order out."""
    settings = parts.settings
    rows = settings.sql_max_rows if order.limit is None else order.limit
    limits = QueryLimits(rows, settings.sql_max_seconds, settings.sql_max_bytes)
    most = MessageLimits(settings.max_payload_bytes, settings.max_topic_levels)

    def work(job: Job) -> dict[str, Any]:
        target = parts.target(order, job.id)
        return Replay(
            job,
            order,
            parts.queries,
            limits,
            target,
            most,
            partial(check_rights, parts.callers, order),
        ).run()

    return work
