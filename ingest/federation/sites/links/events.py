"""Events of links, as records of `mqlake.events`: rows of the table `events`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from mqlake.errors import LogError
from mqlake.records import compact_json
from mqlake.records.messages import EVENTS
from mqlake.records.versions import RECORD_VERSION

if TYPE_CHECKING:
    from mqlake.clock import Clock
    from mqlake.log.contract import LogWriter

_logger = logging.getLogger(__name__)

LINK_UP: Final = "federation.link_up"
LINK_DOWN: Final = "federation.link_down"
RECORDS_GONE: Final = "federation.records_gone"
LINK_HELD: Final = "federation.link_held"
LINK_RESUMED: Final = "federation.link_resumed"


class LinkEvents:
    """Tells of the links of one site, after the fact: nothing waits for it.

    Args:
        writer: Writer of the site's log.
        tenant: Tenant whose messages are federated.
        site: This one.
        clock: For the time of an event.
    """

    def __init__(self, writer: LogWriter, tenant: str, site: int, clock: Clock) -> None:
        self._writer = writer
        self._tenant = tenant
        self._site = site
        self._clock = clock

    def add(self, event: str, neighbour: int, reason: str | None = None) -> None:
        """Append an event; one that the log does not take is logged."""
        value = {
            "v": RECORD_VERSION,
            "event": event,
            "ts": self._clock.now_ms(),
            "tenant": self._tenant,
            "client_id": None,
            "gateway": None,
            "reason": reason,
            "site": self._site,
            "neighbour": neighbour,
        }
        key, data = f"{self._tenant}/".encode(), compact_json.encode(value)
        try:
            self._writer.append(EVENTS, key, data, [], _appended, partition=0)
        except LogError as exc:
            _appended(0, -1, exc)


def _appended(_partition: int, _offset: int, error: LogError | None) -> None:
    if error is not None:
        fields = {"reason": str(error)}
        _logger.warning("an event of a link is lost", extra={"fields": fields})
