"""The order for a replay, and the query that gives its messages."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from api.sql.checking import CheckedQuery, check
from mqlake.topics.matching import covers

COLUMNS: Final = (
    "topic",
    "payload_bytes",
    "qos",
    "retain",
    "properties",
    "client_id",
    "id",
    "ts",
    "log_partition",
    "log_offset",
)
"""That the SELECT has to give, as `SELECT * FROM messages` does; further ones are left out."""
CLIENT_RATE: Final = 100
"""Messages a second to one client, unless another number is asked for."""
COLUMNS_HINT: Final = f"a replay needs the columns {', '.join(COLUMNS)}: SELECT * has them"


@dataclass(frozen=True, slots=True)
class ReplayOrder:
    """The order for a replay; `from_request` makes it of a job's request.

    Attributes:
        query: Checked, of one tenant.
        prefix: Put before each topic.
        client_id: The only client that gets the messages; None: they are published.
        speed: 1 keeps the time between messages, 2 halves it; None: as fast as the rate allows.
        rate: Messages a second, at most.
        limit: Messages, at most; None: more than the API's limit are refused.
        keep_retain: The RETAIN flag is kept; else nothing that is retained changes.
        username: Name of the caller: of published messages the user name.
        topic_filters: Topics that messages are read from and published to; None: all.
    """

    tenant: str
    query: CheckedQuery
    prefix: str
    client_id: str | None
    speed: float | None
    rate: int
    limit: int | None
    keep_retain: bool
    username: str
    topic_filters: tuple[str, ...] | None = None

    @classmethod
    def from_request(cls, tenant: str, request: Mapping[str, Any]) -> "ReplayOrder":
        """Return the order that a job's request keeps.

        Raises:
            QueryError: The query is refused.
        """
        fields = dict(request)
        filters = fields.pop("topic_filters", None)
        return cls(
            tenant=tenant,
            query=check(fields.pop("query"), tenant, topic_filters=filters),
            topic_filters=None if filters is None else tuple(filters),
            **fields,
        )

    def may_go_to(self, topic_name: str) -> bool:
        """Tell whether the caller may send a message to a topic."""
        known = self.topic_filters
        return known is None or any(covers(one, topic_name) for one in known)


@dataclass(frozen=True, slots=True)
class Place:
    """The last message that was dealt with: time in microseconds UTC, partition, offset."""

    at_us: int
    partition: int
    offset: int


def ordered_query(order: ReplayOrder, before_ms: int, after: Place | None) -> CheckedQuery:
    """Return the query of a replay: in the order of time, behind a position.

    Args:
        order: Request of the job, checked.
        before_ms: When the replay was asked for: its own messages are not replayed.
        after: Position that an earlier run of the job has come to.
    """
    conditions = [f"ts <= timestamp_millis({before_ms:d})"]
    if after is not None:
        at, partition, offset = after.at_us, after.partition, after.offset
        conditions.append(
            f"(ts, log_partition, log_offset) > (timestamp_micros({at:d}), {partition:d},"
            f" CAST({offset:d} AS BIGINT))"
        )
    listed = ", ".join(f"`{name}`" for name in COLUMNS)
    sql = (
        f"SELECT {listed} FROM ({order.query.sql}) AS replayed"  # noqa: S608
        f" WHERE {' AND '.join(conditions)} ORDER BY ts, log_partition, log_offset"
    )
    return order.query.around(sql)
