"""Rules of files, asked; and against a second implementation that goes rule by rule."""

import random
from itertools import count, islice
from typing import Any

import pytest

from mqlake.rights.compiled import MAX_REMEMBERED, Rights
from mqlake.rights.files import parse_rights
from mqlake.rights.model import RightsFile, RightsRule
from mqlake.rights.patterns import ClientIdPattern, TopicPattern
from mqlake.topics.matching import covers, filter_matches, overlaps
from tests.cases import case
from tests.ingest.simulations import simulations_wanted
from tests.memory import kept_bytes

PLANT = """
[roles]
operators = ["olga", "otto"]

[[rules]]
effect = "allow"
actions = ["connect"]
authenticated = true
client_ids = ["%u", "%u-*"]

[[rules]]
effect = "deny"
actions = ["publish", "receive"]
topics = ["plant/secret/#"]

[[rules]]
effect = "allow"
actions = ["publish", "subscribe", "receive"]
topics = ["plant/#", "$SYS/#"]
roles = ["operators"]

[[rules]]
effect = "allow"
actions = ["publish"]
topics = ["devices/%c/telemetry"]
qos = [0, 1]
retain = false

[[rules]]
effect = "allow"
actions = ["subscribe", "receive"]
topics = ["devices/%c/commands/#"]

[[rules]]
effect = "allow"
actions = ["publish"]
topics = ["users/%u/#"]
"""


def plant() -> Rights:
    return Rights(parse_rights(PLANT))


def test_what_no_rule_allows_is_denied() -> None:
    nobody = Rights(parse_rights("rules = []")).of("c1", "ann")
    assert not nobody.may_connect()
    assert not nobody.may_publish("a", 0, False)
    assert not nobody.may_receive("a")
    assert not nobody.may_subscribe("a", 0)


def test_the_first_rule_that_holds_decides() -> None:
    otto = plant().of("otto-1", "otto")
    assert otto.may_publish("plant/1", 2, True)
    assert not otto.may_publish("plant/secret/1", 0, False)
    assert not otto.may_publish("plant/secret", 0, False)
    assert otto.may_subscribe("plant/#", 2)
    assert otto.may_receive("plant/1")
    assert not otto.may_receive("plant/secret/1")  # he may ask for more than he gets
    assert otto.may_subscribe("$SYS/broker/+", 0)
    assert not otto.may_subscribe("#", 0)
    assert not plant().of("ann-1", "ann").may_publish("plant/1", 0, False)
    assert not plant().of("otto-1", None).may_publish("plant/1", 0, False)


@pytest.mark.parametrize("username", ["otto", None])
def test_topics_of_ones_own(username: str | None) -> None:
    device = plant().of("d1", username)
    assert device.may_publish("devices/d1/telemetry", 1, False)
    assert not device.may_publish("devices/d1/telemetry", 2, False)
    assert not device.may_publish("devices/d1/telemetry", 1, True)
    assert not device.may_publish("devices/d2/telemetry", 1, False)
    assert device.may_subscribe("devices/d1/commands/+", 2)
    for odd in ("devices/+/commands/#", "devices/#", "#", "+/d1/commands/#", "devices/d1/#"):
        assert not device.may_subscribe(odd, 0), odd


@pytest.mark.parametrize("client_id", ["+", "#", "a/b", "+/x", "d1/telemetry", "$SYS", ""])
def test_a_name_opens_nothing_but_its_own(client_id: str) -> None:
    device = plant().of(client_id, None)
    for topic in ("devices/d1/telemetry", "devices/a/b/telemetry", "devices/d1/commands/x"):
        assert not device.may_publish(topic, 0, False)
        assert not device.may_receive(topic)
    for odd in ("devices/+/commands/#", f"devices/{client_id}/commands/#", "devices/#"):
        if "#/" not in odd and not odd.endswith("##"):
            assert not device.may_subscribe(odd, 0) or client_id == "$SYS"
    user = plant().of("c1", client_id or None)
    assert not user.may_publish("users/ann/x", 0, False)
    assert not user.may_publish("users/a/b/x", 0, False)


def test_which_client_identifiers_one_may_have() -> None:
    rights = plant()
    for client_id in ("ann", "ann-", "ann-phone"):
        assert rights.of(client_id, "ann").may_connect()
    for client_id in ("bob", "annx", "Ann", "", "an", "bob-ann"):
        assert not rights.of(client_id, "ann").may_connect()
    assert not rights.of("ann", None).may_connect()


def test_one_who_asks_for_what_is_denied_in_part_is_refused() -> None:
    rights = Rights(
        parse_rights(
            """
            rules = [
              { effect = "deny", actions = ["subscribe"], topics = ["a/secret/#", "b/%c"] },
              { effect = "allow", actions = ["subscribe"], topics = ["#"] },
            ]
            """
        )
    ).of("c1", None)
    for topic_filter in ("#", "a/#", "+/secret/x", "+/+", "a/secret", "b/c1", "b/+"):
        assert not rights.may_subscribe(topic_filter, 0), topic_filter
    for topic_filter in ("c/#", "a/open/#", "a", "b/c2", "+"):
        assert rights.may_subscribe(topic_filter, 0), topic_filter
    assert not rights.may_subscribe("$SYS/#", 0)


def test_other_rules_count_from_when_they_are_taken() -> None:
    client = plant().of("d1", "ann")
    assert client.may_publish("devices/d1/telemetry", 0, False)
    client.take(Rights(parse_rights("rules = []")))
    assert not client.may_publish("devices/d1/telemetry", 0, False)
    client.take(plant())
    assert client.may_publish("devices/d1/telemetry", 0, False)


def test_answers_that_are_remembered_are_bounded() -> None:
    client, numbers = plant().of("otto-1", "otto"), count()

    def ask(times: int) -> None:
        for number in islice(numbers, times):
            assert client.may_publish(f"plant/{number}", 0, False)
            assert client.may_receive(f"plant/{number}")

    as_many = kept_bytes(lambda: ask(MAX_REMEMBERED))
    assert kept_bytes(lambda: ask(5 * MAX_REMEMBERED)) < 2 * as_many


# Against rules taken one by one

LEVELS = ("a", "b", "c1", "$x")
NAMES = ("c1", "ann", "+", "a/b", "#", "", "$x")


def holds(rule: RightsRule, file: RightsFile, client_id: str, username: str | None) -> bool:
    """Tell whether a rule is for somebody."""
    return (
        (rule.authenticated is None or rule.authenticated == (username is not None))
        and (rule.users is None or username in rule.users)
        and (rule.roles is None or any(username in file.roles[role] for role in rule.roles))
        and (
            rule.client_ids is None
            or any(ClientIdPattern(one).matches(client_id, username) for one in rule.client_ids)
        )
    )


def decide(
    file: RightsFile,
    action: str,
    client_id: str,
    username: str | None,
    topic: str,
    qos: int = 0,
    retain: bool = False,
) -> bool:
    for rule in file.rules:
        if action not in rule.actions or not holds(rule, file, client_id, username):
            continue
        if rule.qos is not None and qos not in rule.qos:
            continue
        if rule.retain is not None and rule.retain != retain:
            continue
        for text in rule.topics:
            mine = TopicPattern(text).of(client_id, username)
            if mine is None:
                continue
            if action == "subscribe":
                is_met = (covers if rule.effect == "allow" else overlaps)(mine, topic)
            else:
                is_met = filter_matches(mine, topic)
            if is_met:
                return rule.effect == "allow"
    return False


def made_up_file(chosen: random.Random) -> RightsFile:
    def pattern() -> str:
        levels = [
            chosen.choice(("a", "b", "+", "%c", "%u", "x-%c", "$x"))
            for _ in range(chosen.randint(1, 3))
        ]
        if chosen.random() < 0.3:
            levels.append("#")
        return "/".join(levels)

    def rule() -> dict[str, Any]:
        actions = chosen.sample(("publish", "subscribe", "receive"), chosen.randint(1, 3))
        made: dict[str, Any] = {
            "effect": chosen.choice(("allow", "allow", "deny")),
            "actions": actions,
            "topics": [pattern() for _ in range(chosen.randint(1, 2))],
        }
        if chosen.random() < 0.3:
            made["users"] = chosen.sample(("ann", "bob", "$x"), 2)
        if chosen.random() < 0.2:
            made["roles"] = ["r"]
        if chosen.random() < 0.2:
            made["client_ids"] = [chosen.choice(("c1", "c*", "%u", "*"))]
        if chosen.random() < 0.2:
            made["authenticated"] = chosen.random() < 0.5
        if chosen.random() < 0.3 and "receive" not in actions:
            made["qos"] = chosen.sample((0, 1, 2), 2)
        if chosen.random() < 0.3 and actions == ["publish"]:
            made["retain"] = chosen.random() < 0.5
        return made

    rules = [rule() for _ in range(chosen.randint(1, 12))]
    return RightsFile.model_validate({"roles": {"r": ["ann"]}, "rules": rules})


def test_trees_decide_as_the_rules_do_one_by_one() -> None:
    for seed in range(simulations_wanted(150)):
        with case(f"seed {seed}"):
            compare(seed)


def compare(seed: int) -> None:
    chosen = random.Random(seed)
    file = made_up_file(chosen)
    rights = Rights(file)
    for _ in range(60):
        client_id = chosen.choice(NAMES)
        username = chosen.choice((None, *filter(None, NAMES)))
        client = rights.of(client_id, username)
        topic = "/".join(chosen.choice(LEVELS) for _ in range(chosen.randint(1, 4)))
        levels = [chosen.choice((*LEVELS, "+")) for _ in range(chosen.randint(1, 3))]
        wanted = "/".join((*levels, "#") if chosen.random() < 0.3 else levels)
        qos, retain = chosen.randint(0, 2), chosen.random() < 0.5
        asked = (client_id, username)
        assert client.may_publish(topic, qos, retain) == decide(
            file, "publish", *asked, topic, qos, retain
        )
        assert client.may_receive(topic) == decide(file, "receive", *asked, topic)
        assert client.may_subscribe(wanted, qos) == decide(file, "subscribe", *asked, wanted, qos)
