"""A part of a running system: its process, and another one that follows it."""

from dataclasses import dataclass, field
from typing import Final

from launcher.child import Child
from launcher.planning.parts import NEXT, Part, PartHealth
from launcher.supervision.hanging import HangEnd, HangWatch
from launcher.supervision.restarts import Restarts
from launcher.supervision.usage import Usage, usage_of_sessions
from mqlake.processes.status import ProcessReport, start_ticks

PLACED_SECONDS: Final = 10.0
"""So long one that has taken a place may leave it to say so itself."""


@dataclass(slots=True)
class Running:
    """A part and its processes.

    Attributes:
        child: The present one.
        healthy_since: When that was found healthy first.
        was_healthy: Whether one of its processes ever was.
        asked_at: When the present one was asked to stop, to be started again: that is no failure.
        next: Started beside the present one, to take its place.
        leaving: Process whose place was taken and that was asked to stop.
        placed_at: When that was.
        stopping_since: When it was asked to stop with the system.
        watch: Counts the silence of the present process.
        hanging: How that is ended, as it hangs.
    """

    part: Part
    child: Child | None = None
    restarts: Restarts = field(default_factory=Restarts)
    last_exit: str | None = None
    health: PartHealth = field(default_factory=lambda: PartHealth(False, "not started"))
    probed_at: float = 0.0
    usage: Usage = field(default_factory=Usage)
    cpu_percent: float = 0.0
    start_ticks: int | None = None
    healthy_since: float | None = None
    was_healthy: bool = False
    asked_at: float | None = None
    next: Child | None = None
    next_health: PartHealth = field(default_factory=lambda: PartHealth(False, "starting"))
    next_since: float = 0.0
    leaving: Child | None = None
    placed_at: float | None = None
    stopping_since: float | None = None
    watch: HangWatch | None = None
    hanging: HangEnd | None = None

    @property
    def children(self) -> list[Child]:
        """All its processes."""
        return [one for one in (self.child, self.next, self.leaving) if one is not None]

    @property
    def is_changing(self) -> bool:
        """Tell whether it is being started again on purpose."""
        return not (self.next is None and self.leaving is None and self.asked_at is None)

    def begun(self, health: PartHealth) -> None:
        """Count from now on for a process that has just become the present one."""
        assert self.child is not None
        pid = self.child.pid
        self.start_ticks = start_ticks(pid)
        self.usage = usage_of_sessions({pid}).get(pid, Usage())
        self.probed_at = 0.0
        self.healthy_since = None
        self.health = health
        self.watch = self.hanging = None

    def probed(self, health: PartHealth, now: float) -> None:
        """Take the health of the present process."""
        is_placed = self.placed_at is not None and now - self.placed_at < PLACED_SECONDS
        if not health.healthy and (self.leaving is not None or is_placed):
            return  # it flows, and says so itself when the other one has ended
        self.health = health
        self.was_healthy = self.was_healthy or health.healthy
        if health.healthy and self.healthy_since is None:
            self.healthy_since = now

    def put_next(self, now: float) -> None:
        """Have the process that was started beside the present one in its place."""
        self.child, self.next = self.next, None
        self.placed_at = now
        self.begun(self.next_health)

    def clear_away(self, now: float) -> None:
        """Forget the one whose place was taken when it has ended, or takes too long for it."""
        if self.leaving is None or self.placed_at is None:
            return
        is_late = now - self.placed_at > self.part.program.stop_timeout_seconds
        if self.leaving.exit_reason() is not None or is_late:
            self.leaving.kill_group()
            self.leaving = None
            self.placed_at = now

    def reports(self, now: float) -> list[ProcessReport]:
        """Return the reports of its processes for others."""
        child = self.child
        found = [
            ProcessReport(
                name=self.part.name,
                pid=None if child is None else child.pid,
                healthy=self.health.healthy,
                detail=self.health.detail,
                restarts=self.restarts.count,
                last_exit=self.last_exit,
                uptime_seconds=0.0 if child is None else round(now - child.started_at, 1),
                rss_bytes=self.usage.rss_bytes,
                cpu_percent=self.cpu_percent,
                cpu_seconds=round(self.usage.cpu_seconds, 2),
                start_ticks=None if child is None else self.start_ticks,
                figures=self.health.figures,
            )
        ]
        if self.next is not None:
            found.append(
                ProcessReport(
                    name=NEXT.format(self.part.name),
                    pid=self.next.pid,
                    healthy=True,
                    detail=self.next_health.detail,
                    uptime_seconds=round(now - self.next.started_at, 1),
                    start_ticks=start_ticks(self.next.pid),
                )
            )
        return found
