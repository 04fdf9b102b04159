"""The command's part of a growth, without a log."""

from dataclasses import dataclass, field

import pytest

from mqlake.errors import OperationalError
from mqlake.log.grow import grow
from mqlake.log.growth import Growth, GrowthStep, Heard
from mqlake.records.messages import INBOUND


@dataclass
class Log:
    """A log that others look at in between."""

    growth: Growth | None = None
    present: int = 4
    records: dict[int, int] = field(default_factory=dict)
    gateways: dict[str, Heard] = field(default_factory=dict)
    now: float = 0.0
    told: list[str] = field(default_factory=list)
    steps: list[Growth] = field(default_factory=list)
    has_spark: bool = True
    unread: list[Growth] = field(default_factory=list)
    """Steps that the log has, and whoever looks does not know yet."""

    def used(self) -> int:
        return 4 if self.growth is None else self.growth.used

    def look(self, timeout_seconds: float = 0.0) -> None:
        """Let time pass, in which everybody else does what is due."""
        self.now += timeout_seconds
        self.read_to_end()
        growth = self.growth
        if growth is None or not self.has_spark:
            return
        for name, one in self.gateways.items():
            if one.is_fixed or name != "dead":
                self.gateways[name] = Heard(growth.used, True, 10.0, self.now)
        if growth.step is GrowthStep.MOVED:
            self.growth = growth.cut_at(dict.fromkeys(range(growth.after), 7))
        elif growth.step is GrowthStep.CUT:
            self.growth = growth.finished()

    def read_to_end(self) -> None:
        if self.unread:
            self.growth = self.unread.pop()
            self.unread.clear()

    def heard(self) -> dict[str, Heard]:
        return self.gateways

    def ends(self, log_topic: str) -> dict[int, int]:
        assert log_topic == INBOUND
        return {one: self.records.get(one, 0) for one in range(self.present)}

    def add_partitions(self, log_topic: str, partitions: int) -> None:
        assert log_topic == INBOUND
        self.present = partitions

    def say(self, growth: Growth) -> None:
        self.unread.append(growth)
        self.steps.append(growth)

    def grow(self, partitions: int, timeout_seconds: float = 60.0) -> None:
        grow(self, self, self.say, self.told.append, partitions, timeout_seconds, lambda: self.now)


def test_the_log_grows_step_by_step() -> None:
    log = Log(gateways={"one": Heard(4, False, 10.0, 0.0)})
    log.grow(8)
    assert log.steps == [Growth(4, 8), Growth(4, 8).moved()]
    assert log.present == 8
    assert log.growth is not None
    assert log.growth.is_done
    assert log.told[0] == "waits for gateways to be ready: one"
    log.grow(16)
    assert log.steps[2:] == [Growth(8, 16), Growth(8, 16).moved()]
    assert log.present == 16
    assert log.growth == Growth(8, 16).cut_at(dict.fromkeys(range(8), 7)).finished()


def test_no_partition_is_added_before_all_gateways_that_live_are_ready() -> None:
    log = Log(gateways={"dead": Heard(4, False, 10.0, 0.0)})
    with pytest.raises(OperationalError, match=r"not done after 5 s: waits .* ready: dead"):
        log.grow(8, 5.0)
    assert log.present == 4
    log.grow(8)
    assert log.growth is not None
    assert log.growth.is_done


@pytest.mark.parametrize("step", list(GrowthStep))
def test_the_command_goes_on_where_it_stopped(step: GrowthStep) -> None:
    growth = Growth(4, 8)
    cut = growth.cut_at(dict.fromkeys(range(4), 7))
    begun = {
        GrowthStep.ANNOUNCED: growth,
        GrowthStep.MOVED: growth.moved(),
        GrowthStep.CUT: cut,
        GrowthStep.DONE: cut.finished(),
    }[step]
    log = Log(begun, present=4 if step is GrowthStep.ANNOUNCED else 8)
    if step is GrowthStep.DONE:
        with pytest.raises(OperationalError, match="in 8 partitions"):
            log.grow(8)
        return
    log.grow(8)
    assert log.growth == cut.finished()
    assert log.present == 8


def test_one_growth_comes_after_the_other() -> None:
    with pytest.raises(OperationalError, match="to 8 partitions just now"):
        Log(Growth(4, 8), has_spark=False).grow(16)


def test_without_readers_it_is_said_what_is_waited_for() -> None:
    log = Log(has_spark=False)
    with pytest.raises(OperationalError, match="waits for the router"):
        log.grow(8)
    assert log.growth == Growth(4, 8).moved(), "it goes on by itself"


def test_partitions_that_others_have_written_to_are_refused() -> None:
    with pytest.raises(OperationalError, match=r"partition 5 .* by hand"):
        Log(present=8, records={5: 3}).grow(8)
    empty = Log(present=8)
    empty.grow(8)
    assert empty.growth is not None
    assert empty.growth.is_done
