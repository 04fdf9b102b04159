"""Ends and beginnings of log topics, asked of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqlake.errors import LogError
from mqlake.records.federation import FEDERATION
from mqlake.records.messages import INBOUND, ROUTES, ROUTES_IN_FORCE, delivery_topic

if TYPE_CHECKING:
    from mqlake.log.contract import LogReader


class Ends:
    """The ends of the log topics that messages go through.

    Args:
        reader: Asks the log.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader

    async def inbound(self) -> dict[int, int]:
        """Return per partition of `mqlake.inbound` the offset that the next record will get.

        Raises:
            LogError: The log does not answer.
        """
        return await self._reader.end_offsets(INBOUND)

    async def inbound_begins(self) -> dict[int, int]:
        """Return per partition of `mqlake.inbound` the first offset that the log still has.

        Raises:
            LogError: The log does not answer.
        """
        return await self._reader.begin_offsets(INBOUND)

    async def has_sites(self) -> bool:
        """Tell whether a federator has brought messages of other sites to this log.

        Raises:
            LogError: The log does not answer.
        """
        try:
            return any((await self._reader.end_offsets(FEDERATION)).values())
        except LogError as error:
            if error.definite:  # there is no such log topic
                return False
            raise

    async def delivery(self, gateway: str) -> int:
        """Return the offset that a gateway's next delivery will get.

        Raises:
            LogError: The log does not answer, or there is no such gateway.
        """
        return (await self._reader.end_offsets(delivery_topic(gateway)))[0]

    async def routes(self) -> int:
        """Return the offset that the next route will get.

        Raises:
            LogError: The log does not answer.
        """
        return (await self._reader.end_offsets(ROUTES))[0]

    async def routes_in_force(self) -> int:
        """Return the offset that the next note of routes in force will get.

        Raises:
            LogError: The log does not answer.
        """
        return (await self._reader.end_offsets(ROUTES_IN_FORCE))[0]
