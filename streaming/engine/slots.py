"""How many tasks run at once, and which queries can have the slots that real-time mode needs.

A real-time query keeps one slot for each partition it reads, as long as it runs.
"""

import os
import re
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from mqlake.records.messages import INBOUND

SPARE_SLOTS: Final = 1
"""Beside those that real-time queries keep; the other queries and SQL take turns on them."""


class SlotSettings(Protocol):
    """Settings of the router for slots."""

    @property
    def master(self) -> str: ...

    @property
    def trigger(self) -> Literal["real-time", "micro-batch"]: ...


@dataclass(frozen=True, slots=True)
class QueryMode:
    real_time: bool
    reason: str
    """Why not in real time; empty when it is."""


IN_BATCHES: Final = QueryMode(real_time=False, reason="it writes tables")


def task_slots(master: str) -> int | None:
    """Return how many tasks a local master runs at once; None for a cluster, which may grow."""
    if master == "local":
        return 1
    if re.fullmatch(r"local\[\*(,\d+)?\]", master):
        return os.cpu_count() or 1
    if match := re.fullmatch(r"local\[(\d+)(?:,\d+)?\]", master):
        return int(match[1])
    if match := re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]", master):
        return int(match[1]) * int(match[2])
    return None


def router_mode(settings: SlotSettings, partitions: int) -> QueryMode:
    """Choose how the router runs.

    Args:
        settings: Its trigger and its master.
        partitions: Partitions of `mqlake.inbound`.
    """
    if settings.trigger == "micro-batch":
        return QueryMode(real_time=False, reason=f"trigger is {settings.trigger}")
    slots = task_slots(settings.master)
    needed = partitions + SPARE_SLOTS
    if slots is not None and slots < needed:
        return QueryMode(
            real_time=False, reason=f"{slots} task slots, {needed} needed for real time"
        )
    return QueryMode(real_time=True, reason="")


def rules_mode(settings: SlotSettings, router: QueryMode, partitions: int, more: int) -> QueryMode:
    """Choose how rules run, beside the router.

    Args:
        settings: Its trigger and its master.
        router: How the router runs.
        partitions: Partitions of `mqlake.inbound`.
        more: Partitions of the other sources of rules.
    """
    if not router.real_time:
        return router
    slots = task_slots(settings.master)
    needed = 2 * partitions + more + SPARE_SLOTS
    if slots is not None and slots < needed:
        return QueryMode(
            real_time=False, reason=f"{slots} task slots, {needed} needed for real time"
        )
    return QueryMode(real_time=True, reason="")


def slots_advice(settings: SlotSettings, partitions: int) -> str:
    """Return advice that would let the router run in real time."""
    return (
        f"Spark master {settings.master}: give it {partitions + SPARE_SLOTS} slots, one for each "
        f"partition of {INBOUND} and {SPARE_SLOTS} spare"
    )
