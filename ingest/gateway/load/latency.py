"""How long messages take, of a sample: about as many each second, however many there are.

All of them when there are few; of many every n-th, which then counts for those between. The
packet path has one subtraction and one comparison of it.
"""

from typing import Final

from mqlake.clock import Clock
from mqlake.errors import LogError
from mqlake.log.contract import AppendCallback
from mqlake.processes.latency import ACCEPT, DELIVER, ROUTE, Latencies

SAMPLES: Final = 25
"""From one `adjust` to the next, four times a second."""


class Sampler:
    """Says which messages are to be measured.

    The caller takes one off `countdown` for each message; when it is negative, it calls `begin`.

    Attributes:
        countdown: Messages that are not measured before the next one that is.
    """

    __slots__ = ("_begun", "_stride", "countdown")

    def __init__(self) -> None:
        self.countdown = 0
        self._stride = 1
        self._begun = 0

    def begin(self) -> int:
        """Begin to measure one; return for how many it counts."""
        self._begun += 1
        self.countdown = self._stride - 1
        return self._stride

    def adjust(self) -> None:
        """Measure about `SAMPLES` until the next call, if there are as many messages as before."""
        self._stride = max(1, self._begun * self._stride // SAMPLES)
        self._begun = 0
        self.countdown = min(self.countdown, self._stride - 1)


class GatewayLatencies:
    """The stages that this gateway sees the end of.

    Args:
        clock: Its monotonic time counts within the gateway, its calendar between machines.

    Attributes:
        accepted: Asked of every message that is to be acknowledged.
        delivered: Asked of every delivery that some client is to have.
        stages: Measurements, by stage.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.accepted = Sampler()
        self.delivered = Sampler()
        self.stages = {ACCEPT: Latencies(), ROUTE: Latencies(), DELIVER: Latencies()}

    def timed(self, on_appended: AppendCallback) -> AppendCallback:
        """Measure until a message is stored and answered."""
        count = self.accepted.begin()
        begin = self._clock.monotonic()
        latencies = self.stages[ACCEPT]

        def answer(partition: int, offset: int, error: LogError | None) -> None:
            on_appended(partition, offset, error)
            if error is None:
                latencies.add((self._clock.monotonic() - begin) * 1000, count)

        return answer

    def deliver(self, received_at_ms: int, routed_at_ms: int) -> None:
        """Measure a message that has just been given to its subscribers.

        Clocks of machines differ: so do these figures.
        """
        count = self.delivered.begin()
        self.stages[ROUTE].add(routed_at_ms - received_at_ms, count)
        self.stages[DELIVER].add(self._clock.now_ms() - received_at_ms, count)

    def adjust(self) -> None:
        """Adjust the samplers; called four times a second."""
        self.accepted.adjust()
        self.delivered.adjust()

    def counts(self) -> dict[str, list[int]]:
        """Return the counts of each stage since the start, by class."""
        return {stage: latencies.counts for stage, latencies in self.stages.items()}
