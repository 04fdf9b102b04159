"""The lanes of all versions of all rules.

They are made when a version has its first output, and closed when it is gone or has had none for
long.
"""

import asyncio
from functools import partial
from typing import Final

from mqlake.clock import Clock
from mqlake.processes.tracing import Tracer
from mqlake.records.outputs import rule_record_key
from mqlake.records.rule_facts import RuleKey
from rules.actions import make_action
from rules.actions.contract import Action, ActionError, ActionServices
from rules.errors import RuleError
from rules.metrics import RuleMetrics
from rules.model import ActionSpec
from rules.runner.checkpoint import LaneKey
from rules.runner.definitions import Definitions
from rules.runner.lanes import BrokenAction, Lane, LaneLimits, LaneStream
from rules.runner.makers import KnownMakers, MakersAction, publishing_rights
from rules.runner.services import RunnerServices
from rules.runner.tracing import TracedAction

UNUSED_LANE_SECONDS: Final = 600.0

LaneGroup = tuple[bytes, bytes]
"""Key and header `rule` of outputs: a version of a rule."""


class LaneRegistry:
    """Make it inside the event loop.

    Args:
        definitions: Know the actions of a version.
        makers: Know the rights of its maker.
        services: Services for actions.
        limits: Limits of each lane.
        metrics: Have the counters.
        stream: Serves the lanes.
        clock: For latencies and patience.
        tracer: Makes spans of actions; without one there are none.

    Attributes:
        lanes: Lanes of the versions that are known here; none if there is nothing to do.
    """

    def __init__(
        self,
        definitions: Definitions,
        makers: KnownMakers,
        services: RunnerServices,
        limits: LaneLimits,
        metrics: RuleMetrics,
        stream: LaneStream,
        clock: Clock,
        tracer: Tracer | None = None,
    ) -> None:
        self._definitions = definitions
        self._makers = makers
        self._services = services
        self._limits = limits
        self._metrics = metrics
        self._stream = stream
        self._tracer = tracer
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._closing: set[asyncio.Task[None]] = set()
        self.lanes: dict[LaneGroup, tuple[Lane, ...]] = {}

    def all(self) -> list[Lane]:
        return [lane for lanes in self.lanes.values() for lane in lanes]

    def make(self, tenant: str, rule: str, version: int) -> tuple[Lane, ...] | None:
        """Return the lanes of a version, None when it is not known."""
        if self._definitions.is_deleted(tenant, rule):
            return ()
        group = rule_record_key(tenant, rule), str(version).encode()
        if group not in self.lanes:
            specs = self._definitions.find(tenant, rule, version)
            if specs is None:
                return None
            made = [
                self._make_lane(LaneKey(tenant, rule, version, index), spec)
                for index, spec in enumerate(specs)
            ]
            self.lanes[group] = tuple(lane for lane in made if lane is not None)
        return self.lanes[group]

    def find(self, key: LaneKey) -> Lane | None:
        lanes = self.make(key.tenant, key.rule, key.version) or ()
        return next((lane for lane in lanes if lane.key == key), None)

    def take_deletion(self, rule: RuleKey) -> None:
        """Drop the unfinished outputs of a rule."""
        record_key = rule_record_key(*rule)
        for group in [group for group in self.lanes if group[0] == record_key]:
            for lane in self.lanes.pop(group):
                self._close_lane(lane, drop=True)

    def take_definition(self, rule: RuleKey) -> None:
        """Ask again for versions that were not known so far."""
        record_key = rule_record_key(*rule)
        for group in [g for g, lanes in self.lanes.items() if g[0] == record_key and not lanes]:
            del self.lanes[group]

    def close_unused(self) -> None:
        before = self._clock.monotonic() - UNUSED_LANE_SECONDS
        for group, lanes in list(self.lanes.items()):
            if all(lane.is_idle and lane.used_at < before for lane in lanes):
                del self.lanes[group]
                for lane in lanes:
                    self._close_lane(lane, drop=False)

    async def close(self) -> None:
        await asyncio.gather(*(lane.close() for lane in self.all()), *self._closing)

    def _make_lane(self, key: LaneKey, spec: ActionSpec) -> Lane | None:
        maker = self._definitions.maker(key.tenant, key.rule, key.version)
        services = self._services.of(key.tenant, partial(publishing_rights, self._makers, maker))
        make = partial(self._make_action, key.tenant, maker, services)
        action = make(spec)
        if action is None:
            return None
        fallbacks = [
            (inner.function, made)
            for inner in spec.fallback
            if (made := make(inner, is_fallback=True)) is not None
        ]
        return Lane(
            key,
            spec.function,
            action,
            fallbacks,
            self._limits,
            self._metrics.counters(key.tenant, key.rule, key.action, spec.function),
            self._stream,
            self._clock,
        )

    def _make_action(
        self,
        tenant: str,
        maker: str | None,
        services: ActionServices,
        spec: ActionSpec,
        *,
        is_fallback: bool = False,
    ) -> Action | None:
        try:
            action = make_action(spec, services, is_fallback=is_fallback)
        except (RuleError, ActionError, OSError) as exc:
            return BrokenAction(str(exc))
        if action is not None and maker is not None:
            action = MakersAction(action, spec, tenant, maker, self._makers)
        if action is None or self._tracer is None:
            return action
        return TracedAction(action, spec.function, self._tracer, self._clock)

    def _close_lane(self, lane: Lane, *, drop: bool) -> None:
        async def close() -> None:
            before = lane.counters.dropped
            await lane.close(drop=drop)
            self._metrics.add_to_past({"dropped": lane.counters.dropped - before})

        task = self._loop.create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
