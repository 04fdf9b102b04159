"""Reports of the log that wait while others may have the sessions of this gateway.

A record of a session counts only if the session was still held. A message that a client has
published counts in any case; but a client whose session others have, and whose will they have
published, is not served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Reports:
    """Runs reports in their order, or parks them while it is unknown whether the sessions are held.

    Args:
        count: Tells whether the gateway is known to hold its sessions.

    Attributes:
        is_parking: True when the last `look` found that reports are to be parked; for callers that
            cannot afford to ask for each report.
    """

    def __init__(self, count: Callable[[], bool]) -> None:
        self._count = count
        self._parked: list[Callable[[], None]] = []
        self.is_parking = False

    def run(self, report: Callable[[], None]) -> None:
        """Run a report, now or once it counts; behind those that are parked."""
        if not self._parked and self._count():
            report()
        else:
            self.park(report)

    @property
    def has_parked(self) -> bool:
        return bool(self._parked)

    def look(self) -> None:
        """Find out whether reports from now on are to be parked."""
        self.is_parking = bool(self._parked) or not self._count()

    def park(self, report: Callable[[], None]) -> None:
        self._parked.append(report)

    def confirmed(self) -> None:
        """Go on with parked ones: sessions still held were held all the time."""
        parked, self._parked = self._parked, []
        self.look()
        for report in parked:
            self.run(report)
