"""Has the log grow (`mqlake.log.growth`) as far as it takes no reader: announced, added, moved.

Router and lake take the steps that follow. A process that stops in between begins again: the log
says which steps are done.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from mqlake.errors import OperationalError
from mqlake.log.growth import Growth, GrowthStep, Heard, check_growth, waits_for
from mqlake.records.messages import INBOUND

LOOK_SECONDS: Final = 0.2


class GrowthSource(Protocol):
    """Implemented by `mqlake.log.growth_watch.GrowthWatch`, which describes it."""

    growth: Growth | None

    def used(self) -> int: ...
    def look(self, timeout_seconds: float = 0.0) -> None: ...
    def read_to_end(self) -> None: ...
    def heard(self) -> dict[str, Heard]: ...


class Admin(Protocol):
    """Implemented by `mqlake.log.admin.LogAdmin`, which describes it."""

    def ends(self, log_topic: str) -> dict[int, int]: ...
    def add_partitions(self, log_topic: str, partitions: int) -> None: ...


def grow(
    watch: GrowthSource,
    admin: Admin,
    say: Callable[[Growth], None],
    tell: Callable[[str], None],
    partitions: int,
    timeout_seconds: float,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Have messages in `partitions`; return when all readers read them.

    Args:
        watch: Says how far it is.
        admin: Adds partitions.
        say: Writes a step, and waits until it is safe.
        tell: Gets the processes waited for, whenever these change.
        partitions: Wanted.
        timeout_seconds: For everything together.
        monotonic: Clock of `watch`, in seconds.

    Raises:
        LogError: The log does not answer; begin again.
        OperationalError: The log cannot grow so, or the time is over: it goes on when the command
            is given again.
    """
    deadline = monotonic() + timeout_seconds
    _begin(watch, admin, say, partitions)
    told = ""
    while (growth := watch.growth) is None or not growth.is_done:
        if growth is not None and growth.step is GrowthStep.ANNOUNCED:
            watch.read_to_end()
            is_ready = not waits_for(growth, watch.heard(), monotonic())
            if is_ready and watch.growth == growth:
                admin.add_partitions(INBOUND, growth.after)
                say(growth.moved())
        waiting = _waiting(growth, watch.heard(), monotonic())
        if waiting != told:
            tell(waiting)
            told = waiting
        if monotonic() > deadline:
            raise OperationalError(f"not done after {timeout_seconds:g} s: {waiting}")
        watch.look(LOOK_SECONDS)


def _begin(
    watch: GrowthSource, admin: Admin, say: Callable[[Growth], None], partitions: int
) -> None:
    growth = watch.growth
    if growth is not None and not growth.is_done:
        if growth.after != partitions:
            raise OperationalError(
                f"the log grows to {growth.after} partitions just now: that is to be done first"
            )
        return
    used = watch.used()
    check_growth(used, partitions)
    filled = [one for one, end in admin.ends(INBOUND).items() if one >= used and end]
    if filled:
        raise OperationalError(
            f"partition {filled[0]} of {INBOUND} has records that must not be read: a tool has "
            "added partitions by hand, and clients have put messages there and into their places"
        )
    say(Growth(used, partitions))
    watch.read_to_end()  # the step before may be the end of an earlier growth


def _waiting(growth: Growth | None, heard: Mapping[str, Heard], now: float) -> str:
    if growth is None:
        return "the log takes the first step"
    names = ", ".join(waits_for(growth, heard, now))
    match growth.step:
        case GrowthStep.ANNOUNCED if names:
            return f"waits for gateways to be ready: {names}"
        case GrowthStep.ANNOUNCED:
            return "partitions are added"
        case GrowthStep.MOVED if names:
            return f"waits for gateways to move: {names}"
        case GrowthStep.MOVED:
            return "messages are in all partitions; waits for the router"
        case _:
            return "waits for all readers to pass the messages from before"
