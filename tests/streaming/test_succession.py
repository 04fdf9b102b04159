"""Which router is the router, where each has its folder, and when one may follow another."""

import subprocess
import sys
from pathlib import Path

import pytest

from mqlake.errors import LogError, OperationalError
from mqlake.records.messages import EVENTS, INBOUND
from streaming.engine.exclusive import Lock
from streaming.router.succession import Flow, Seat, Succession

pytestmark = pytest.mark.programs


def test_one_is_the_router_until_it_has_ended(tmp_path: Path) -> None:
    first, second = Succession(tmp_path), Succession(tmp_path)
    first.take(0.0)
    assert first.is_router
    assert not second.try_take()
    first.lock.close()
    assert second.try_take()
    assert second.is_router
    assert second.try_take(), "it stays so"


def test_who_does_not_start_beside_it_is_refused(tmp_path: Path) -> None:
    first = Succession(tmp_path)
    first.take(0.0)
    with pytest.raises(OperationalError, match="another Spark application works in"):
        Succession(tmp_path).take(0.0)


def test_a_lock_that_is_taken_later_is_held_by_who_inherited_it(tmp_path: Path) -> None:
    """As Java does, which was started while another router ran."""
    lock = Lock(tmp_path / "lock")
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(lock.descriptor,)) as inheritor:
        assert lock.try_take()
        lock.close()
        assert not Lock(tmp_path / "lock").try_take()
        inheritor.communicate()
    assert Lock(tmp_path / "lock").try_take()


def test_two_have_a_folder_each_and_know_who_has_ended(tmp_path: Path) -> None:
    first = Seat(tmp_path)
    assert [folder.name for folder in first.ended] == ["b"]
    second = Seat(tmp_path)
    assert first.folder != second.folder
    assert second.ended == []
    with pytest.raises(OperationalError, match="one beside it"):
        Seat(tmp_path)
    first.lock.close()
    third = Seat(tmp_path)
    assert third.folder == first.folder
    assert third.ended == []
    assert third.checkpoint("rules") == third.folder / "checkpoints" / "rules"


def test_all_flows_when_each_query_is_past_the_mark_in_each_partition() -> None:
    sources = {INBOUND: (10, 20), EVENTS: (5,)}
    flow = Flow(lambda: sources)
    queries = {"router": {INBOUND: 2}, "rules": {INBOUND: 2, EVENTS: 1}}
    reached = {
        "router": {INBOUND: {0: 11, 1: 21}},
        "rules": {INBOUND: {0: 11, 1: 21}, EVENTS: {0: 6}},
    }
    assert flow.is_there(reached, queries)
    assert flow.is_there({"router": reached["router"]}, {"router": {INBOUND: 2}})
    assert not flow.is_there({"router": reached["router"]}, queries)
    for query, log_topic, partition in (("router", INBOUND, 1), ("rules", EVENTS, 0)):
        behind = {name: {t: dict(at) for t, at in one.items()} for name, one in reached.items()}
        behind[query][log_topic][partition] -= 1
        assert not flow.is_there(behind, queries)
    assert flow.is_there({"router": {INBOUND: {0: 11}}}, {"router": {INBOUND: 1}}), "the log grows"


def test_a_mark_that_the_log_does_not_take_is_made_again() -> None:
    asked: list[int] = []

    def mark() -> dict[str, tuple[int, ...]]:
        asked.append(1)
        if len(asked) == 1:
            raise LogError("away", definite=False)
        return {INBOUND: (3,)}

    flow = Flow(mark)
    reached = {"router": {INBOUND: {0: 9}}}
    assert not flow.is_there(reached, {"router": {INBOUND: 2}})
    assert flow.is_there(reached, {"router": {INBOUND: 2}})
    assert flow.is_there(reached, {"router": {INBOUND: 2}})
    assert len(asked) == 2
