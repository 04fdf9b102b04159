"""Arguments of actions: what is taken, what is refused and with which words."""

from typing import Any

import pytest

from rules.actions import FUNCTIONS, check_actions, describe_arguments
from rules.errors import RuleError
from rules.model import ActionSpec

URL = "https://example.org/hook"

UPSERT = "INSERT INTO t VALUES (${a}) ON CONFLICT (a) DO UPDATE SET b = ${b};"

TAKEN: list[tuple[str, dict[str, Any]]] = [
    ("republish", {"topic": "a/b"}),
    ("republish", {"topic": "a/${x.y}", "qos": 2, "retain": False, "payload": "${payload}"}),
    ("republish", {"topic": "${topic}", "qos": "${qos}", "retain": "${flags.retain}"}),
    ("republish", {"topic": "a", "user_properties": "${user_properties}"}),
    (
        "republish",
        {"topic": "a", "user_properties": {"k": "${v}"}, "mqtt_properties": {"Content-Type": "x"}},
    ),
    ("republish", {"topic": "a", "user_properties": "", "direct_dispatch": False}),
    ("table", {"name": "alarms_2"}),
    ("log", {"topic": "alarms"}),
    (
        "log",
        {
            "topic": "alarms",
            "key": "${k}",
            "value": "${.}",
            "headers": {"a": "${b}"},
            "connection": "other",
        },
    ),
    ("http", {"url": URL}),
    (
        "http",
        {
            "url": "http://[2001:db8::1]:8080/a/${b}?c=${d}",
            "method": "PUT",
            "headers": {"X-A": "${b}"},
        },
    ),
    (
        "http",
        {
            "url": "https://example.org?x=${y}",
            "retry": {"attempts": 3, "give_up_after_seconds": 60},
        },
    ),
    ("sql", {"connection": "db", "statement": "INSERT INTO t (a, b) VALUES (${a}, ${b})"}),
    ("sql", {"connection": "db", "statement": UPSERT}),
    ("sql", {"connection": "db", "statement": "UPDATE t SET a = ${a} WHERE b = ${b.c[1]}"}),
    (
        "sql",
        {"connection": "db", "statement": "DELETE FROM t WHERE id=${id}", "done_table": "app.done"},
    ),
    ("console", {}),
]

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("republish", {}, "args.topic"),
    ("republish", {"topic": ""}, "args.topic"),
    ("republish", {"topic": "a/+/b"}, "wildcard"),
    ("republish", {"topic": "a/#"}, "wildcard"),
    ("republish", {"topic": "$SYS/x"}, r"\$SYS"),
    ("republish", {"topic": "a\0b"}, "U\\+0000"),
    ("republish", {"topic": "a/${b"}, "not closed"),
    ("republish", {"topic": "a", "qos": 3}, "args.qos"),
    ("republish", {"topic": "a", "qos": "1"}, "no template"),
    ("republish", {"topic": "a", "retain": "yes"}, "no template"),
    ("republish", {"topic": "a", "direct_dispatch": True}, "direct_dispatch"),
    ("republish", {"topic": "a", "mqtt_properties": {"Topic-Alias": "1"}}, "Topic-Alias"),
    ("republish", {"topic": "a", "user_properties": "x=${y}"}, "user_properties"),
    ("republish", {"topic": "a", "unknown": 1}, "unknown"),
    ("table", {"name": "Bad"}, "args.name"),
    ("table", {"name": "a; DROP TABLE messages"}, "args.name"),
    ("log", {"topic": "mqlake.inbound"}, "not for rules"),
    ("log", {"topic": "__consumer_offsets"}, "not for rules"),
    ("log", {"topic": "a/b"}, "args.topic"),
    ("log", {"topic": "a", "headers": {"output": "x"}}, "taken"),
    ("http", {"url": "ftp://example.org/"}, "does not begin"),
    ("http", {"url": "file:///etc/passwd"}, "does not begin"),
    ("http", {"url": "https://${host}/"}, "host"),
    ("http", {"url": "https://example.org:${port}/"}, "host"),
    ("http", {"url": "https://example.org${x}/"}, "host"),
    ("http", {"url": "${url}"}, "does not begin"),
    ("http", {"url": "https://user:secret@example.org/"}, "Authorization"),
    ("http", {"url": "https://example.org@10.0.0.1/"}, "Authorization"),
    ("http", {"url": "https:///path"}, "host"),
    ("http", {"url": "https://example.org:99999/"}, "host"),
    ("http", {"url": "https://exa mple.org/"}, "host"),
    ("http", {"url": "https://example.org\\@evil/"}, "Authorization|host"),
    ("http", {"url": "https://example.org/a b"}, "escaped"),
    ("http", {"url": "https://example.org/a\r\nX: y"}, "escaped"),
    ("http", {"url": "https://example.org/#f"}, "fragment"),
    ("http", {"url": "https://b\u00fccher.example/"}, "host of url is not valid"),
    ("http", {"url": URL, "headers": {"X-A": "a\r\nX-B: b"}}, "would hold a control character"),
    ("http", {"url": URL, "headers": {"X-A": "${topic}\n"}}, "would hold a control character"),
    ("http", {"url": URL, "headers": {"Host": "x"}}, "cannot be set"),
    ("http", {"url": URL, "headers": {"content-length": "1"}}, "cannot be set"),
    ("http", {"url": URL, "headers": {"Idempotency-Key": "x"}}, "cannot be set"),
    ("http", {"url": URL, "headers": {"a b": "x"}}, "no name"),
    ("http", {"url": URL, "headers": {"X": "${$secret.A}"}}, "not a path"),
    ("http", {"url": "https://${$secret.host}/"}, "host"),
    ("http", {"url": URL, "body": "${$secret.a}", "verify_tls": False}, "not verified"),
    ("log", {"topic": "a", "value": "${$secret.a}"}, "takes none"),
    ("log", {"topic": "a", "headers": {"x": "${$secret.a}"}}, "takes none"),
    ("republish", {"topic": "a/${$secret.a}"}, "takes none"),
    ("republish", {"topic": "a", "payload": "${$secret.a}"}, "takes none"),
    ("republish", {"topic": "a", "user_properties": {"x": "${$secret.a}"}}, "user_properties"),
    (
        "sql",
        {"connection": "db", "statement": "DELETE FROM t WHERE a = ${$secret.a}"},
        "takes none",
    ),
    ("http", {"url": URL, "method": "CONNECT"}, "method"),
    ("http", {"url": URL, "timeout_seconds": 0}, "timeout_seconds"),
    ("http", {"url": URL, "concurrency": 1000}, "concurrency"),
    ("sql", {"connection": "db", "statement": "SELECT 1"}, "not one INSERT"),
    ("sql", {"connection": "no/name", "statement": "DELETE FROM t"}, "connection"),
    (
        "sql",
        {"connection": "db", "statement": "DELETE FROM t", "done_table": "t; DROP"},
        "done_table",
    ),
    (
        "sql",
        {"connection": "db", "statement": "DELETE FROM t", "done_table": "pg_catalog.t"},
        "done_table: table pg_catalog.t is the system's own",
    ),
    ("console", {"max_characters": 0}, "max_characters"),
    ("consol", {}, "did you mean console"),
    ("webhook", {}, "there is no function"),
]


@pytest.mark.parametrize(("function", "args"), TAKEN)
def test_arguments_are_taken(function: str, args: dict[str, Any]) -> None:
    check_actions([ActionSpec(function=function, args=args)])


@pytest.mark.parametrize(("function", "args", "words"), REFUSED)
def test_arguments_are_refused(function: str, args: dict[str, Any], words: str) -> None:
    with pytest.raises(RuleError, match=words) as caught:
        check_actions([ActionSpec(function=function, args=args)])
    assert "actions[0]" in str(caught.value)


def test_fallbacks_are_checked_and_have_none_of_their_own() -> None:
    console = ActionSpec(function="console")
    check_actions([ActionSpec(function="http", args={"url": URL}, fallback=(console,))])
    nested = console.model_copy(update={"fallback": (console,)})
    for wrong in (nested, ActionSpec(function="x"), ActionSpec(function="table")):
        with pytest.raises(RuleError, match=r"actions\[0\].fallback\[0\]"):
            check_actions([ActionSpec(function="http", args={"url": URL}, fallback=(wrong,))])


def test_a_table_can_be_a_fallback_unless_it_has_all_outputs_anyway() -> None:
    table = ActionSpec(function="table", args={"name": "missed"})
    http = ActionSpec(function="http", args={"url": URL}, fallback=(table,))
    check_actions([http, ActionSpec(function="table", args={"name": "all"})])
    with pytest.raises(RuleError, match=r"actions\[1\].fallback\[0\]: table missed has every"):
        check_actions([table, http])


def test_a_table_takes_no_fallback() -> None:
    spec = ActionSpec(
        function="table", args={"name": "a"}, fallback=(ActionSpec(function="console"),)
    )
    with pytest.raises(RuleError, match="no fallback"):
        check_actions([spec])


def test_every_function_describes_each_of_its_arguments() -> None:
    described = describe_arguments()
    assert described.keys() == FUNCTIONS.keys()
    assert "topic" in described["republish"]["properties"]
