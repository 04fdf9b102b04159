"""What a login brings along: only more, never against the file."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.rights.compiled import ClientRights, Rights
from mqlake.rights.files import parse_rights
from mqlake.rights.grants import Grants, GrantsError, grants_of, read_grants

FILE = """
[roles]
pumps = []

[[rules]]
effect = "deny"
actions = ["publish", "receive"]
topics = ["plant/secret/#"]

[[rules]]
effect = "allow"
actions = ["publish"]
topics = ["pumps/%c"]
roles = ["pumps"]

[[rules]]
effect = "deny"
actions = ["connect"]
client_ids = ["root"]
"""


def of(roles: Any, rules: Any, client_id: str = "p1", username: str | None = "ann") -> ClientRights:
    return Rights(parse_rights(FILE)).of(client_id, username, read_grants(roles, rules))


def publishes(*topics: str, **more: Any) -> list[dict[str, Any]]:
    return [{"actions": ["publish"], "topics": list(topics), **more}]


def test_without_any_the_file_alone_counts() -> None:
    rights = of(None, None)
    assert not rights.may_publish("a", 0, retain=False)
    assert not rights.may_connect()


def test_roles_are_those_of_the_file() -> None:
    assert of(["pumps", "unknown"], None).may_publish("pumps/p1", 0, retain=False)
    assert of("pumps", None).may_publish("pumps/p1", 0, retain=False)
    assert not of(["pump", "pumps "], None).may_publish("pumps/p1", 0, retain=False)


def test_rules_count_where_none_of_the_file_decides() -> None:
    rights = of(None, publishes("plant/#", qos=[0, 1], retain=False))
    assert rights.may_publish("plant/a", 1, retain=False)
    assert not rights.may_publish("plant/a", 2, retain=False)
    assert not rights.may_publish("plant/a", 1, retain=True)
    assert not rights.may_publish("plant/secret/a", 0, retain=False)
    rules = [{"actions": ["subscribe", "receive"], "topics": ["plant/#"]}]
    rights = of(None, rules)
    assert rights.may_subscribe("plant/#", 1)
    assert rights.may_subscribe("plant/+/a", 1)
    assert not rights.may_subscribe("#", 1)
    assert rights.may_receive("plant/a")
    assert not rights.may_receive("plant/secret/a")
    assert not rights.may_receive_all("plant/#")


def test_client_identifiers_may_be_granted() -> None:
    rules = [{"actions": ["connect"], "client_ids": ["%u-*"]}]
    assert of(None, rules, "ann-1").may_connect()
    assert not of(None, rules, "bob-1").may_connect()
    assert not of(None, [{"actions": ["connect"]}], "root").may_connect()


@pytest.mark.parametrize("name", ["+", "#", "a/b", "", "$SYS"])
def test_names_are_only_text(name: str) -> None:
    rights = of(None, publishes("%c/x"), client_id=name)
    for topic in ("a/x", "a/b/x", "/x", "$SYS/x"):
        assert not rights.may_publish(topic, 0, retain=False)


def test_other_rules_of_the_file_take_the_place_of_the_old_ones() -> None:
    rights = of(["pumps"], publishes("a"))
    denies = '[[rules]]\neffect = "deny"\nactions = ["publish"]\ntopics = ["#"]'
    rights.take(Rights(parse_rights(denies)))
    assert not rights.may_publish("a", 0, retain=False)
    rights.take(Rights(parse_rights("rules = []")))
    assert rights.may_publish("a", 0, retain=False)
    assert not rights.may_publish("pumps/p1", 0, retain=False)


@pytest.mark.parametrize(
    ("roles", "rules", "reason"),
    [
        (7, None, "roles: expected a list of names"),
        ([7], None, "roles: expected a list of names"),
        ({}, None, "roles: expected a list of names"),
        (None, {}, "rules: expected a list of rules"),
        (None, "#", "rules: expected a list of rules"),
        (None, ["#"], "rule 1: expected an object"),
        (["a"] * 501, None, "501 roles and 0 rules, expected at most 500 and 100"),
        (None, publishes("a") * 101, "0 roles and 101 rules"),
        (None, publishes("a", effect="deny"), "rule 1: a rule that comes with a login only allows"),
        (None, publishes("a", effect=["allow"]), "only allows"),
        (None, publishes("a", users=["bob"]), "rule 1 has 'users', expected actions, "),
        (None, publishes("a", roles=["all"]), "rule 1 has 'roles'"),
        (None, publishes("a", authenticated=False), "rule 1 has 'authenticated'"),
        (None, publishes("a#"), "rule 1: topics.0: "),
        (None, publishes("%x"), "rule 1: topics.0: '%x' has '%x', expected %c, %u, %{name} or %%"),
        (None, [{"actions": ["publish"]}], "rule 1: topics is missing"),
        (None, [{"actions": ["fly"], "topics": ["a"]}], "rule 1: actions.0"),
    ],
)
def test_what_is_no_roles_or_rules_is_refused(roles: Any, rules: Any, reason: str) -> None:
    with pytest.raises(GrantsError) as failure:
        read_grants(roles, rules)
    assert reason in str(failure.value)


def test_they_come_back_from_json() -> None:
    rules = [
        {"actions": ["connect"], "client_ids": ["%u-*"]},
        {"effect": "allow", "actions": ["publish"], "topics": ["%c/#"], "qos": [1], "retain": True},
    ]
    found = read_grants(["b", "a"], rules)
    assert grants_of(json.loads(json.dumps(found.members()))) == found
    assert grants_of({}) == Grants()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("publish"),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["actions", "topics", "client_ids", "qos", "retain", "effect"]),
                inner,
            )
        ),
        max_leaves=10,
    )
)
def test_nothing_makes_it_fail(found: Any) -> None:
    for roles, rules in ((found, None), (None, found), (None, [found])):
        try:
            assert grants_of(read_grants(roles, rules).members()) == read_grants(roles, rules)
        except GrantsError:
            continue


SITES = """
[[rules]]
effect = "allow"
actions = ["publish", "subscribe", "receive"]
topics = ["plants/%{site}/#", "%{certificate.organization}/#"]
"""


def of_site(**attributes: str) -> ClientRights:
    grants = read_grants(None, None, attributes)
    return Rights(parse_rights(SITES)).of("c1", "ann", grants)


def test_rules_are_for_attributes_of_a_login() -> None:
    north = of_site(site="north")
    assert north.may_publish("plants/north/1", 0, retain=False)
    assert north.may_subscribe("plants/north/#", 1)
    assert north.may_receive("plants/north/a/b")
    for topic_name in ("plants/south/1", "plants//1", "plants/+/1", "Example/1"):
        assert not north.may_publish(topic_name, 0, retain=False)
        assert not north.may_receive(topic_name)
    assert not north.may_subscribe("plants/+/#", 1)
    odd = of_site(site="+")
    assert not odd.may_subscribe("plants/+/#", 1)
    assert not odd.may_receive("plants/north/1")


def test_a_login_has_no_attributes_of_a_certificate() -> None:
    with pytest.raises(GrantsError, match="expected letters"):
        read_grants(None, None, {"certificate.organization": "Example"})
    certified = read_grants(None, None, {"site": "north"}).with_attributes(
        {"certificate.organization": "Example"}
    )
    rights = Rights(parse_rights(SITES)).of("c1", "ann", certified)
    assert rights.may_publish("Example/1", 0, retain=False)
    kept = grants_of(json.loads(json.dumps(certified.members())))
    assert kept == certified, "a will keeps them"


@pytest.mark.parametrize(
    "attributes",
    [
        "text",
        ["a"],
        7,
        {"a": 7},
        {"a": None},
        {"a": ["b"]},
        {"a b": "c"},
        {"": "c"},
        {"a": "x" * 256},
        {f"a{number}": "x" for number in range(51)},
    ],
)
def test_attributes_are_texts_within_bounds(attributes: Any) -> None:
    with pytest.raises(GrantsError, match="attribute"):
        read_grants(None, None, attributes)
