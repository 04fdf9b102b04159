"""Sessions that are kept; Spark is made up."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from api.spark.kept_sessions import KeptSessions

USE: Any = "use"


@dataclass(eq=False)
class KeptSession:
    is_known: bool = True
    is_closed: bool = False

    def is_there(self, _use: Any) -> bool:
        return self.is_known

    def close(self) -> None:
        self.is_closed = True


@dataclass
class Opened:
    """What was opened."""

    all: list[KeptSession] = field(default_factory=list)

    def open(self, _use: Any) -> KeptSession:
        self.all.append(KeptSession())
        return self.all[-1]


def kept(opened: Opened, most: int = 1) -> KeptSessions[KeptSession]:
    return KeptSessions(opened.open, most, lambda error: isinstance(error, LookupError))


def test_a_session_is_lent_again_also_after_a_harmless_error() -> None:
    opened = Opened()
    sessions = kept(opened)
    with pytest.raises(LookupError), sessions.lend(USE) as first:
        raise LookupError
    with sessions.lend(USE) as second:
        assert second is first
    sessions.close()
    assert first.is_closed
    assert len(opened.all) == 1


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_session_is_closed_after_another_error(error: type[BaseException]) -> None:
    sessions = kept(Opened())
    with pytest.raises(error), sessions.lend(USE) as session:
        raise error
    assert session.is_closed
    assert sessions.idle == []


def test_a_session_that_spark_has_no_more_is_replaced() -> None:
    sessions = kept(Opened())
    with sessions.lend(USE) as first:
        pass
    first.is_known = False
    with sessions.lend(USE) as second:
        assert second is not first
    assert first.is_closed


def test_no_more_are_kept_than_said() -> None:
    sessions = kept(Opened())
    with sessions.lend(USE) as first, sessions.lend(USE) as second:
        assert first is not second
    assert [one.is_closed for one in (second, first)] == [False, True]
