"""Names in paths: whatever a name holds, the route that is asked for gets that name."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import h11
import pytest
from fastapi.routing import iter_route_contexts

from api.app import MAX_HEAD_BYTES, create_app, server_config
from api.web.pages import read_cursor, write_cursor
from api.web.segments import NameSegment, marked, plain
from tests.api.conftest import Api, operations, subscription
from tests.cases import case

NAMES = (
    "pump",
    "pump/subscriptions",
    "pump/in_flight",
    "subscriptions",
    "in_flight",
    "/",
    "//",
    "a/b",
    "/a",
    "a/",
    "a//b",
    "/subscriptions",
    "subscriptions/",
    "../clients",
    "..a",
    "a/../b",
    ".",
    "..",
    *("a%2Fb", "a%252Fb", "%", "%2", "%00", "a?b", "a#b", "a;b", "a&b=c", "a+b", "a b", " ", "\\"),
    "\n",
    "a\n",
    "a\nb",
    "pump/subscriptions\n",
    "pump\n/subscriptions",
    "\r\n",
    "\t",
    "\x01",
    "é",
    "\u00a0",
    "😀",
    "\ufdd0",
    "\ufffd",
    "\u017f",
    "validate",
    "versions",
    "x" * 60_000,
    "é" * 10_000,
)
"""Identifiers and topics that MQTT allows."""
FEW = ("pump/subscriptions", "/", "a//b", "../clients", "a%2Fb", "a?b", "a\n", "😀", "versions")
PARAMETERS = ("id", "name", "client_id", "topic", "version", "other")


def whole(name: str) -> str:
    """Return a name as one segment of a path; programs leave out those of one or two points."""
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="")


def unencoded(name: str) -> str | None:
    """Return a name with its slashes as they are; None where a path means something else then."""
    if "//" in f"/{name}" or "/." in f"/{name}":
        return None  # programs leave these out of paths
    return quote(name)


def test_each_parameter_of_a_path_is_a_segment(api: Api) -> None:
    """A new route has `{id:segment}`, or `{topic:segments}`."""
    count = 0
    for context in iter_route_contexts(api.client.app.routes):
        for name, convertor in getattr(context, "param_convertors", {}).items():
            assert isinstance(convertor, NameSegment), (context.path, name)
            count += 1
    assert count > 60


def test_what_a_path_holds_comes_back() -> None:
    for name in NAMES:
        with case(repr(name[:40])):
            path = marked(f"/api/{whole(name)}/x".encode())
            assert path.count("/") == 3
            assert "\n" not in path
            assert plain(path) == f"/api/{name}/x"


def named(path: str, name: str) -> Iterator[str]:
    """Yield a path with a name in the place of each of its parameters, one at a time."""
    for parameter in PARAMETERS:
        if f"{{{parameter}}}" in path:
            asked = path.replace(f"{{{parameter}}}", whole(name))
            for other in PARAMETERS:
                asked = asked.replace(f"{{{other}}}", "1")
            yield asked


def test_every_operation_gets_the_name_that_stands_in_its_path(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is the operation which was asked for, too: its row in the audit log names it."""
    for method, path, operation in operations(api):
        if not operation.get("x-audited"):
            continue
        for name in FEW:
            for asked in named(path, name):
                with case(f"{method} {path} with {name!r}"):
                    before = len(api.audited.records)
                    answer = api.request(method, asked, json={})
                    assert answer.status_code != 500
                    (row,) = [json.loads(one.value or b"") for one in api.audited.records[before:]]
                    assert row["operation"] == f"{method} {path}"
                    assert name in row["target"]
                    assert "\0" not in answer.text.replace("\\u0000", "\0"), "no mark is told"


def test_no_operation_tells_marks(api: Api) -> None:
    for method, path, _ in operations(api):
        for asked in named(path, "a/b\n"):
            if method == "GET" and not path.startswith("/live/"):
                answer = api.request(method, asked)
                assert answer.status_code != 500, asked
                assert "\\u0000" not in answer.text, asked


@pytest.fixture
def clients(api: Api) -> Api:
    for name in NAMES:
        api.put_session(name, subscriptions=[subscription(f"of/{name[:40]}")])
    api.hear("gateway-1")
    return api


def test_every_client_can_be_read(clients: Api) -> None:
    for name in NAMES:
        with case(repr(name[:40])):
            path = f"/clients/{whole(name)}"
            assert clients.get(path)["client_id"] == name
            (found,) = clients.get(f"{path}/subscriptions")["items"]
            assert found["topic_filter"] == f"of/{name[:40]}"
            assert clients.get(f"{path}/in_flight") == {"out": [], "in": []}


def test_every_client_can_be_disconnected(clients: Api) -> None:
    for name in NAMES:
        for path in filter(None, (whole(name), unencoded(name))):
            with case(path[:40]):
                answer = clients.request("DELETE", f"/clients/{path}")
                assert answer.status_code == 202
                told = json.loads(clients.log.records[-1].value or b"")
                assert told["client_id"] == answer.json()["client_id"] == name


def test_every_client_is_listed(api: Api) -> None:
    names = [one for one in NAMES if len(one) < 10_000]  # programs have a limit for cursors of such
    for name in names:
        api.put_session(name)
    found: list[str] = []
    cursor = None
    while True:
        page = api.get("/clients", limit=7, **({"cursor": cursor} if cursor else {}))
        found += [one["client_id"] for one in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert sorted(found) == sorted(names)


def read(api: Api, path: str, **more: Any) -> Any:
    answer = api.request("GET", path, follow_redirects=True, **more)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_slashes_may_stay_as_they_are(api: Api) -> None:
    for name in ("b/a", "a/b/subscriptions", "a/in_flight", "a/c d/e"):
        with case(name):
            api.put_session(name, tenant="acme", subscriptions=[subscription("x")])
            asked = {"params": {"tenant": "acme"}}
            assert read(api, f"/clients/{quote(name)}", **asked)["client_id"] == name
            assert len(read(api, f"/clients/{quote(name)}/subscriptions", **asked)["items"]) == 1
            assert read(api, f"/clients/{quote(name)}/in_flight", **asked) == {"out": [], "in": []}


def test_of_two_meanings_the_part_of_a_client_counts(api: Api) -> None:
    api.put_session("pump", subscriptions=[subscription("one")])
    api.put_session("pump/subscriptions", subscriptions=[subscription("two")])
    (found,) = read(api, "/clients/pump/subscriptions")["items"]
    assert found["topic_filter"] == "one"
    assert read(api, "/clients/pump%2Fsubscriptions")["client_id"] == "pump/subscriptions"
    (found,) = read(api, "/clients/pump/subscriptions/subscriptions")["items"]
    assert found["topic_filter"] == "two"


def test_nobody_is_sent_to_a_client_that_is_not_there(api: Api) -> None:
    api.put_session("pump/subscriptions", tenant="acme")
    assert api.request("GET", "/clients/pump/subscriptions").status_code == 404


def test_a_path_that_is_no_text_leads_nowhere(api: Api) -> None:
    api.put_session("\ufffd")
    for path in ("/clients/%FF", "/clients/%C0%AF", "/clients/a%00", "/rules/%ED%A0%80", "/%00"):
        answer = api.request("GET", path)
        assert answer.status_code == 404, path
        assert answer.headers["content-type"] == "application/problem+json"
        assert "path" in answer.json()["detail"]


def test_a_line_end_behind_a_path_is_no_part_of_it(api: Api) -> None:
    for path in ("/rules%0A", "/clients%0A", "/login%0A"):
        assert api.request("GET", path).status_code == 404, path
    api.put_session("c")
    for path in ("/clients/c%0A", "/clients/c/subscriptions%0A"):
        assert api.request("GET", path).status_code == 404, path


def test_the_server_takes_the_longest_name_there_is(api: Api) -> None:
    config = server_config(create_app(api.services))
    server = h11.Connection(
        h11.SERVER, max_incomplete_event_size=config.h11_max_incomplete_event_size or 0
    )
    path = f"/api/v1/clients/{whole('😀' * 16_383 + 'é1')}/subscriptions"
    head = f"GET {path} HTTP/1.1\r\nHost: a\r\n".encode()
    for at in range(0, len(head), 4096):
        server.receive_data(head[at : at + 4096])
        assert server.next_event() is h11.NEED_DATA


def test_the_server_takes_the_longest_cursor_there_is() -> None:
    longest = "\U0001f600" * 16_383
    cursor = write_cursor(longest, longest)
    assert read_cursor(cursor, 2) == [longest, longest]
    assert len(cursor) < MAX_HEAD_BYTES - 16_384
