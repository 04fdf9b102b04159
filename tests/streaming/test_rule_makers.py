"""A rule acts with the rights of who made it: the controller on a log in memory."""

import json
from typing import Any

import pytest

from mqlake.clock import ManualClock
from mqlake.records.access import Account, ApiKey, access_key, encode_access
from mqlake.records.messages import INBOUND
from rules.model import ActionSpec
from streaming.rules.controller import RuleController
from tests.streaming.rule_control import MemoryLog, a_controller

REPUBLISH = ActionSpec(function="republish", args={"topic": "plant/out"})


def a_key(**fields: Any) -> ApiKey:
    values: dict[str, Any] = {"role": "editor", "topic_filters": ("plant/#",)}
    return ApiKey(description="", hash="", created_at=0, created_by="", **(values | fields))


def an_account(role: Any = "editor", **fields: Any) -> Account:
    return Account(role, "", 0, "", 0, **fields)


def give(log: MemoryLog, name: str, value: ApiKey | Account | None) -> None:
    kind, _, key_id = name.partition(":")
    key = access_key("key", key_id) if kind == "key" else access_key("account", name)
    log.access.append((key, None if value is None else encode_access(value)))


def state(log: MemoryLog, rule: str = "r") -> tuple[str, str | None]:
    found = log.activations()[rule]
    return found.state, found.error


def settle(controller: RuleController) -> None:
    """Let it look once more whether it has read all of who has rights."""
    controller.step()
    controller.step()


def test_a_rule_stops_when_its_makers_key_is_revoked_and_says_so() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    give(log, "key:1", a_key())
    log.define("r", 1, sql="plant/a", made_by="key:1", actions=(REPUBLISH,))
    log.define("other", 1, sql="plant/a", made_by="key:2x")
    log.define("ours", 1, sql="plant/a", made_by="api-token")
    log.define("old", 1, sql="plant/a")
    settle(controller)
    assert state(log) == ("running", None)
    assert state(log, "other") == ("failed", "made by key:2x, who may not use the API any more")
    give(log, "key:1", None)
    settle(controller)
    assert state(log) == ("failed", "made by key:1, who may not use the API any more")
    assert log.activations()["r"].spans[0].sources[INBOUND].ends is not None
    assert (state(log, "ours")[0], state(log, "old")[0]) == ("running", "running")
    changes = len(log.barriers())
    controller.step()
    assert len(log.barriers()) == changes, "nothing more to do"
    log.define("r", 2, sql="plant/a", made_by="api-token", actions=(REPUBLISH,))
    settle(controller)
    assert state(log) == ("running", None), "whoever changes it makes it his"


@pytest.mark.parametrize(
    ("rights", "why"),
    [
        ({"topic_filters": ("plant/b",)}, "may not read 'plant/a'"),
        ({"topic_filters": ("plant/a",)}, "may not publish to 'plant/out'"),
        ({"role": "viewer"}, "is viewer, and rules need the role editor"),
        ({"tenants": ("acme",)}, "is not for the tenant default"),
    ],
)
def test_a_rule_stops_and_goes_on_with_the_rights_of_an_account(
    rights: dict[str, Any], why: str
) -> None:
    log = MemoryLog()
    controller = a_controller(log)
    give(log, "ann", an_account(topic_filters=("plant/#",)))
    log.define("r", 1, sql="plant/a", made_by="ann", actions=(REPUBLISH,))
    settle(controller)
    assert state(log) == ("running", None)
    give(log, "ann", an_account(**rights))
    settle(controller)
    assert state(log) == ("failed", f"made by ann, who {why}")
    give(log, "ann", an_account())
    settle(controller)
    assert state(log) == ("running", None)
    # What it has missed can be made up for by a backfill.
    assert [span.missed is not None for span in log.activations()["r"].spans] == [False, True]


def test_rights_that_were_lost_while_nobody_looked_count_from_the_beginning() -> None:
    log = MemoryLog()
    give(log, "key:1", a_key())
    log.define("r", 1, sql="plant/a", made_by="key:1")
    settle(a_controller(log))
    give(log, "key:1", None)
    settle(a_controller(log))
    assert state(log)[0] == "failed"


def test_a_key_that_expires_ends_its_rules() -> None:
    log, clock = MemoryLog(), ManualClock()
    controller = a_controller(log, clock)
    give(log, "key:1", a_key(expires_at=clock.now_ms() + 5_000))
    log.define("r", 1, sql="plant/a", made_by="key:1")
    settle(controller)
    clock.advance(4.9)
    settle(controller)
    assert state(log)[0] == "running"
    clock.advance(0.2)
    settle(controller)
    assert state(log) == ("failed", "made by key:1, who may not use the API any more")


def test_a_key_that_was_just_made_is_waited_for() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    settle(controller)
    give(log, "key:1", a_key())
    log.define("r", 1, sql="plant/a", made_by="key:1")
    log.unread_access = 1
    controller.step()
    assert not log.activations(), "what the log has of the key is not read yet"
    log.unread_access = 0
    settle(controller)
    assert state(log) == ("running", None)


def test_a_record_that_cannot_be_read_takes_rights_away() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    give(log, "key:1", a_key())
    log.define("r", 1, sql="plant/a", made_by="key:1")
    settle(controller)
    log.access.append((access_key("key", "1"), json.dumps({"v": 1, "role": "god"}).encode()))
    settle(controller)
    assert state(log)[0] == "failed"


def test_a_rule_that_joins_or_does_more_than_publish_needs_all_topics() -> None:
    log = MemoryLog()
    controller = a_controller(log)
    for name in ("sql", "table", "http", "log", "console"):
        give(log, f"key:{name}", a_key())
        action = ActionSpec(function=name, args={})
        log.define(name, 1, sql="plant/a", made_by=f"key:{name}", actions=(action,))
    fallback = ActionSpec(function="console")
    inner = ActionSpec(function="republish", args={"topic": "plant/x"}, fallback=(fallback,))
    log.define("inner", 1, sql="plant/a", made_by="key:sql", actions=(inner,))
    log.define("events", 1, sql="events", made_by="key:sql")
    settle(controller)
    assert {found.state for found in log.activations().values()} == {"failed"}
    assert state(log, "inner")[1] == (
        "made by key:sql, who is for some topics alone, and its rules may republish, not console"
    )
