"""Keys, accounts, publish and tail against the application, behind a real server."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cli.app import mqlake
from launcher.testing.systems import await_condition
from mqlake.api_client import ApiClient, ApiError
from mqlake.errors import OperationalError
from mqlake.records.tenants import TenantsError
from mqlake.rights.files import RightsError
from tests.api.conftest import Api, api
from tests.api.live.records import message
from tests.api.test_completeness import NoLetters, say_complete
from tests.api.test_retained import put
from tests.mqlake.test_api_client import served

__all__ = ["api", "served"]  # fixtures of others


def run(api: Api, *arguments: str, stdin: str | bytes = "") -> Result:
    result = CliRunner().invoke(mqlake, [*arguments, "--data-dir", str(api.data_dir)], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def role_of(api: Api, key: str) -> tuple[int, str | None]:
    answer = api.request("GET", "/session", {"Authorization": f"Bearer {key}"})
    return answer.status_code, answer.json().get("role")


def test_a_key_is_made_listed_and_revoked(served: Api) -> None:
    made = run(served, "keys", "create", "weather", "--role", "editor", "--expires", "30d")
    key = made.stdout.strip()
    assert role_of(served, key) == (200, "editor")
    (listed,) = json.loads(run(served, "keys", "list", "--json").stdout)
    assert (listed["description"], listed["role"]) == ("weather", "editor")
    assert listed["expires_at"] is not None
    assert "weather" in run(served, "keys", "list").stdout
    run(served, "keys", "revoke", listed["id"])
    assert role_of(served, key)[0] == 401
    with pytest.raises(ApiError, match="there is no key"):
        run(served, "keys", "revoke", listed["id"])


def test_alarms_are_listed_and_acknowledged(served: Api) -> None:
    watch = served.services.alarms.watch
    served.hear("gateway-1")
    served.clock.advance(10)
    watch.tick()
    (listed,) = json.loads(run(served, "alarms", "list", "--json").stdout)
    assert "gateway-1 does not answer" in run(served, "alarms", "list").stdout
    run(served, "alarms", "acknowledge", listed["id"], "--note", "its plug")
    assert "api-token: its plug" in run(served, "alarms", "list").stdout
    run(served, "alarms", "acknowledge", listed["id"], "--undo")
    assert "its plug" not in run(served, "alarms", "list").stdout
    served.hear("gateway-1")
    watch.tick()
    assert json.loads(run(served, "alarms", "list", "--json").stdout) == []
    assert "gateway-1" in run(served, "alarms", "list", "--cleared").stdout
    with pytest.raises(ApiError, match="there is no alarm"):
        run(served, "alarms", "acknowledge", "none")


def test_lists_from_tables_say_up_to_when_these_are_complete(served: Api) -> None:
    put(served.data_dir, "a")
    served.put_in("queries", spark=NoLetters())
    lists = (("retained",), ("retained", "--json"), ("rules", "dead-letters"))
    for arguments in lists:
        assert run(served, *arguments).stderr == "it is not known up to when they are complete\n"
    say_complete(served.data_dir, state=1_700_000_000_123, outputs=1_700_000_000_123)
    for arguments in lists:
        assert run(served, *arguments).stderr == "complete until 2023-11-14T22:13:20.123000Z\n"


def test_tenants_are_created_suspended_and_applied(served: Api, tmp_path: Path) -> None:
    def states() -> dict[str, Any]:
        found = json.loads(run(served, "tenants", "list", "--json").stdout)
        return {one["name"]: one["state"] for one in found}

    run(served, "tenants", "create", "acme", "--description", "Acme Inc.")
    assert "Acme Inc." in run(served, "tenants", "list").stdout
    run(served, "tenants", "suspend", "acme")
    assert states() == {"acme": "suspended", "default": None}
    run(served, "tenants", "resume", "acme")
    assert states()["acme"] == "active"
    with pytest.raises(OperationalError, match="already"):
        run(served, "tenants", "create", "acme")
    with pytest.raises(OperationalError, match="no tenant"):
        run(served, "tenants", "suspend", "beta")
    file = tmp_path / "tenants.toml"
    file.write_text('[tenants.acme]\nstate = "suspended"\n[tenants.beta]\n')
    run(served, "tenants", "apply", str(file))
    assert states() == {"acme": "suspended", "beta": "active", "default": None}
    assert not run(served, "tenants", "apply", str(file)).stderr, "nothing to change"
    file.write_text('[tenants.acme]\nstate = "gone"\n')
    with pytest.raises(TenantsError, match=r"tenants: acme\.state|tenants: acme: state"):
        run(served, "tenants", "apply", str(file))


def test_somebody_is_banned_and_let_in_again(served: Api) -> None:
    made = run(served, "bans", "add", "--user", "mallory", "--client-id", "evil-*", "--for", "30d")
    (listed,) = json.loads(run(served, "bans", "list", "--json").stdout)
    assert (listed["id"], listed["users"]) == (made.stdout.strip(), ["mallory"])
    assert listed["until"] is not None
    run(served, "bans", "add", "--address", "10.0.0.0/8", "--reason", "floods")
    shown = run(served, "bans", "list").stdout
    assert all(text in shown for text in ("mallory", "evil-*", "10.0.0.0/8", "floods", "for good"))
    run(served, "bans", "lift", listed["id"])
    assert "mallory" not in run(served, "bans", "list").stdout
    with pytest.raises(ApiError, match="there is no ban"):
        run(served, "bans", "lift", listed["id"])
    nobody = run(served, "bans", "add", "--for", "1h")
    assert nobody.exit_code == 2
    assert "expected --client-id, --user, --address or --token" in nobody.output


def test_a_span_of_another_form_is_refused(served: Api) -> None:
    result = run(served, "keys", "create", "x", "--expires", "soon")
    assert result.exit_code == 2
    assert "expected a number and h, d or w" in result.output


def test_an_account_is_added_changed_listed_and_removed(served: Api) -> None:
    run(served, "accounts", "add", "ann", "--role", "viewer", stdin="correct horse\n")
    run(served, "accounts", "set", "ann", "--role", "admin")
    run(served, "accounts", "set", "ann", "--password", stdin="battery staple\n")
    (listed,) = json.loads(run(served, "accounts", "list", "--json").stdout)
    assert (listed["name"], listed["role"]) == ("ann", "admin")
    assert "ann" in run(served, "accounts", "list").stdout
    login = {"username": "ann", "password": "battery staple"}
    assert served.request("POST", "/login", {}, json=login).status_code == 200
    run(served, "accounts", "remove", "ann")
    assert json.loads(run(served, "accounts", "list", "--json").stdout) == []


@pytest.mark.parametrize(
    ("arguments", "stdin", "payloads"),
    [
        (["a/b", "21.5", "--qos", "1"], "", [b"21.5"]),
        (["a/b", "--retain"], "", [b""]),
        (["a/b", "--lines"], b"one\r\n\xff\n", [b"one", b"\xff"]),
    ],
)
def test_messages_are_published(
    served: Api, arguments: list[str], stdin: str | bytes, payloads: list[bytes]
) -> None:
    assert run(served, "publish", *arguments, stdin=stdin).exit_code == 0
    assert [one.value for one in served.log.records] == payloads


def test_a_file_is_published(served: Api, tmp_path: Path) -> None:
    path = tmp_path / "payload"
    path.write_bytes(b"\x00\xff")
    assert run(served, "publish", "a/b", "--file", str(path)).exit_code == 0
    assert served.log.records[-1].value == b"\x00\xff"
    assert run(served, "publish", "a/b", "x", "--file", str(path)).exit_code == 2


def give(api: Api, *records: Any) -> threading.Thread:
    feed = api.services.live.messages

    def run() -> None:
        await_condition(lambda: bool(feed.tenants), "a stream")
        feed.receive(records)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_messages_are_shown_as_they_come(served: Api) -> None:
    records = [message("a/1", b"one", at_ms=1_600_000_000_000), message("a/2\x1b[2J", b"\xff")]
    thread = give(served, *records)
    shown = run(served, "tail", "a/#", "--count", "2").stdout.splitlines()
    thread.join()
    assert shown[0] == "2020-09-13T12:26:40.000Z a/1 one"
    assert shown[1].endswith(" a/2\\x1b[2J (1 bytes)")


def test_messages_are_shown_as_json(served: Api) -> None:
    thread = give(served, message("a", b"one"))
    shown = json.loads(run(served, "tail", "a", "--count", "1", "--json").stdout)
    thread.join()
    assert (shown["topic_name"], shown["payload"]) == ("a", "one")


def test_a_stream_that_is_refused_is_an_error_in_its_words(served: Api) -> None:
    with pytest.raises(ApiError, match="last level"):
        next(ApiClient(served.data_dir).events("/live/messages", topic_filter=["#/a"]))


RIGHTS = """
[roles]
pumps = ["p1"]

[[rules]]
effect = "allow"
actions = ["connect"]
roles = ["pumps"]
"""


def test_rights_are_planned_applied_and_exported(
    served: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rights.toml"
    path.write_text(RIGHTS)
    planned = run(served, "rights", "plan", str(path))
    assert (planned.exit_code, '+roles = ["pumps"]' in planned.stdout) == (2, True)
    served.hear("gateway-1", rights=1)
    applied = run(served, "rights", "apply", str(path))
    assert (applied.exit_code, applied.stdout.splitlines()[-1]) == (0, "version 1 applied")
    again = run(served, "rights", "plan", str(path))
    assert (again.exit_code, again.stdout) == (0, "nothing to change\n")
    again = run(served, "rights", "apply", str(path))
    assert again.stdout == "version 1 was in force already\n"
    exported = run(served, "rights", "export")
    assert exported.stdout == RIGHTS.lstrip()
    path.write_text("rules = []")
    with pytest.raises(ApiError, match="version 1 is in force, not 0"):
        run(served, "rights", "apply", str(path), "--version", "0")
    monkeypatch.setattr("cli.requests.rights._FOLLOW_SECONDS", 0.0)
    with pytest.raises(OperationalError, match="not heard to go by it yet: gateway-1"):
        run(served, "rights", "apply", str(path))
    (newest, oldest) = json.loads(run(served, "rights", "versions", "--json").stdout)
    assert (newest["version"], newest["rule_count"], oldest["version"]) == (2, 0, 1)
    assert "api-token" in run(served, "rights", "versions").stdout
    assert run(served, "rights", "export", "--version", "1").stdout == RIGHTS.lstrip()


def test_a_fault_in_a_file_of_rights_is_told_with_its_place(served: Api, tmp_path: Path) -> None:
    path = tmp_path / "rights.toml"
    path.write_text(RIGHTS + '\n[[rules]]\neffect = "allow"\nactions = ["publish"]\n')
    with pytest.raises(RightsError, match=r"rights\.toml: rule 2: topics is missing"):
        run(served, "rights", "plan", str(path))
    path.write_bytes(b"\xff")
    with pytest.raises(OperationalError, match="cannot be read"):
        run(served, "rights", "apply", str(path))


def test_a_key_is_made_for_some_topics(served: Api) -> None:
    options = ("--role", "editor", "--topic", "plant/#", "--topic", "lab/+")
    key = run(served, "keys", "create", "x", *options).stdout.strip()
    assert "plant/# lab/+" in run(served, "keys", "list").stdout
    assert role_of(served, key) == (200, "editor")
    headers = {"Authorization": f"Bearer {key}"}
    assert served.request("GET", "/clients", headers).status_code == 403
