"""Spans of actions, when traces are asked for: an action that tells how long it took."""

from collections.abc import Sequence
from typing import Final

from mqlake.clock import Clock
from mqlake.processes.tracing import Tracer
from rules.actions.contract import Action, ActionAround, ActionError, Problems, Work

ACT: Final = "act"


class TracedAction(ActionAround):
    """Runs another action; of outputs of sampled messages it tells each try."""

    def __init__(self, action: Action, function: str, tracer: Tracer, clock: Clock) -> None:
        super().__init__(action)
        self._function = function
        self._tracer = tracer
        self._clock = clock

    async def run(self, batch: Sequence[Work]) -> Problems:
        begin_ms = self._clock.now_ms()
        try:
            problems = await self._action.run(batch)
        except ActionError as exc:
            self._tell(batch, dict.fromkeys(range(len(batch)), exc), begin_ms)
            raise
        self._tell(batch, problems, begin_ms)
        return problems

    def _tell(self, batch: Sequence[Work], problems: Problems, begin_ms: int) -> None:
        now_ms = self._clock.now_ms()
        for number, work in enumerate(batch):
            output = work.output
            if not output.traceparent:
                continue
            attributes: dict[str, str | int] = {
                "mqlake.rule": output.rule,
                "mqlake.rule_version": output.version,
                "mqlake.action": self._function,
            }
            if number in problems:
                attributes["error.message"] = str(problems[number])
            parent = output.traceparent.decode("ascii", errors="replace")
            self._tracer.span(ACT, "CLIENT", parent, attributes, from_ms=begin_ms, to_ms=now_ms)
