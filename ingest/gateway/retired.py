"""Routes of gateways that are no more: left in the log, they would draw messages to nobody.

That costs work for plain filters, and messages for share groups: the router may choose the gateway
that is gone. A gateway withdraws what its own earlier run left; for those that never come back
whoever runs the site does it.
"""

from collections.abc import Collection
from typing import Final

from mqlake.errors import InvalidRecord, LogError
from mqlake.log.contract import LogReader, LogWriter
from mqlake.records import ROUTES, decode_route_key

FLUSH_SECONDS: Final = 30.0


async def withdraw_retired_routes(
    reader: LogReader, writer: LogWriter, gateways: Collection[str]
) -> int:
    """Withdraw the routes of all gateways but the given ones; return how many there were.

    Raises:
        LogError: The log does not answer or does not take the records.
    """
    failures: list[LogError] = []

    def report(_partition: int, _offset: int, error: LogError | None) -> None:
        if error is not None:
            failures.append(error)

    retired = [
        key for key in await reader.read_compacted(ROUTES) if _gateway_of(key) not in gateways
    ]
    for key in retired:
        writer.append(ROUTES, key, None, [], report, partition=0)
        # The queue is longer than any list of routes seen, but bounded all the same.
        if writer.queued() > 10_000:
            await writer.flush(FLUSH_SECONDS)
    await writer.flush(FLUSH_SECONDS)
    if failures:
        raise failures[0]
    return len(retired)


def _gateway_of(key: bytes) -> str:
    try:
        return decode_route_key(key).gateway
    except InvalidRecord:
        return ""  # not a route: nobody's, withdrawn as well
