"""Live streams as their readers see them; what a feed would read is given by hand."""

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from api.access.callers import Caller
from api.entrance.authentication import COOKIE
from api.live.readers import MAX_READERS, MAX_READERS_OF_ONE, MAX_READERS_OF_TENANT
from launcher.testing.systems import await_condition
from tests.api.conftest import AUTHORIZED, Api, MemoryMessageFeed, memory_api
from tests.api.live.records import message
from tests.api.live.websocket import Refused, Socket
from tests.api.test_access import bearer, code_of, log_in, make_key
from tests.api.test_api import TOKEN


@pytest.fixture
def short_api(tmp_path: Path) -> Iterator[Api]:
    """An API whose streams end by themselves."""
    with memory_api(tmp_path, live_seconds=0.5) as api:
        yield api


def feed_of(api: Api) -> MemoryMessageFeed:
    feed = api.services.live.messages
    assert isinstance(feed, MemoryMessageFeed)
    return feed


def events_of(text: str) -> list[tuple[str, Any]]:
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line[:1] != ":")
        if fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


def give(api: Api, *records: Any) -> threading.Thread:
    """Give records to the feed as soon as somebody reads."""

    def run() -> None:
        await_condition(lambda: bool(feed_of(api).tenants), "a stream")
        feed_of(api).receive(records)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_messages_come_as_events(short_api: Api) -> None:
    thread = give(short_api, message("a/1", b"one", offset=4), message("b"))
    answer = short_api.request("GET", "/live/messages", params={"topic_filter": ["a/+", "c"]})
    thread.join()
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.startswith(": connected\n\n")
    assert "id: 0:4\n" in answer.text
    shown, end = events_of(answer.text)
    assert (shown[0], shown[1]["topic_name"], shown[1]["payload"]) == ("message", "a/1", "one")
    assert (end[0], end[1]["code"]) == ("end", "unavailable")
    assert not feed_of(short_api).tenants


def test_what_is_left_out_is_told(short_api: Api) -> None:
    thread = give(short_api, *(message("a") for _ in range(5)))
    answer = short_api.request("GET", "/live/messages", params={"topic_filter": "a", "max_rate": 2})
    thread.join()
    names = [name for name, _ in events_of(answer.text)]
    assert names == ["left_out", "message", "message", "end"]
    assert events_of(answer.text)[0][1] == {"rate": 3, "slow": 0, "total": 3}


def test_a_stream_ends_with_its_key(api: Api) -> None:
    key = make_key(api)

    def revoke() -> None:
        await_condition(lambda: bool(feed_of(api).tenants), "a stream")
        api.request("DELETE", f"/keys/{key['id']}")

    thread = threading.Thread(target=revoke)
    thread.start()
    answer = api.request("GET", "/live/messages", bearer(key["key"]), params={"topic_filter": "#"})
    thread.join()
    ((name, said),) = events_of(answer.text)
    assert (name, said["code"]) == ("end", "unauthenticated")


def test_metrics_come_at_once(short_api: Api) -> None:
    name, said = events_of(short_api.request("GET", "/live/metrics").text)[0]
    assert (name, said["clients"]) == ("metrics", 0)


@pytest.mark.parametrize("topic_filter", ["a/#/b", "", "$share/g/a"])
def test_a_filter_that_is_none_is_refused(api: Api, topic_filter: str) -> None:
    answer = api.request("GET", "/live/messages", params={"topic_filter": topic_filter})
    assert code_of(answer) == (422, "invalid_request")


def test_streams_are_counted_and_bounded(short_api: Api) -> None:
    readers = short_api.services.live.readers
    short_api.request("GET", "/live/metrics")
    assert len(readers) == 0
    for number in range(MAX_READERS):
        readers.enter(Caller(f"account-{number // 10}", "viewer", "account"))
    assert code_of(short_api.request("GET", "/live/metrics")) == (503, "unavailable")


def test_one_caller_leaves_places_for_others(short_api: Api) -> None:
    readers = short_api.services.live.readers
    one = Caller("api-token", "admin", "token")
    for _ in range(MAX_READERS_OF_ONE):
        readers.enter(one)
    assert code_of(short_api.request("GET", "/live/metrics")) == (429, "rate_limited")
    made = short_api.request("POST", "/keys", json={"role": "viewer", "description": "a test"})
    other = {"Authorization": f"Bearer {made.json()['key']}"}
    assert short_api.request("GET", "/live/metrics", other).status_code == 200
    readers.leave(one)
    assert short_api.request("GET", "/live/metrics").status_code == 200
    assert len(readers) == MAX_READERS_OF_ONE - 1


def test_callers_of_one_tenant_leave_places_for_those_of_others(short_api: Api) -> None:
    readers = short_api.services.live.readers

    def ask(*tenants: str) -> int:
        key = {"role": "viewer", "description": "a test", "tenants": tenants}
        made = short_api.request("POST", "/keys", json=key).json()["key"]
        path = f"/live/messages?topic_filter=a&tenant={tenants[0]}"
        return short_api.request("GET", path, {"Authorization": f"Bearer {made}"}).status_code

    those = [
        Caller(f"key:{number}", "viewer", "key", tenants=("acme", "other")[: 1 + number % 2])
        for number in range(MAX_READERS_OF_TENANT)
    ]
    for one in those:
        readers.enter(one)
    assert ask("acme") == ask("beta", "acme") == 429
    assert ask("beta") == ask("other") == 200
    for one in those:
        readers.leave(one)
    assert ask("acme") == 200
    assert len(readers) == 0


def test_topics_are_listed_with_their_last_message(api: Api) -> None:
    records = [
        message(name, b"%d" % number) for number, name in enumerate(("b", "a/1", "a/2", "b"))
    ]
    feed_of(api).receive(records)
    page = api.get("/topics", limit=2)
    assert [one["topic_name"] for one in page["items"]] == ["a/1", "a/2"]
    (last,) = api.get("/topics", cursor=page["next_cursor"])["items"]
    assert (last["messages"], last["last"]["payload"]) == (2, "3")
    found = api.get("/topics", topic_filter="a/+", max_payload_bytes=0)["items"]
    assert [one["last"]["payload"] for one in found] == [None, None]
    assert page["forgotten"] == 0


def test_a_websocket_carries_several_streams(api: Api) -> None:
    async def talk() -> None:
        async with Socket(api.client.app, AUTHORIZED) as socket:

            async def ask(**asked: Any) -> list[Any]:
                await socket.say(**asked)
                return [(one["id"], one["event"]) for one in await socket.hear()]

            filters = {"stream": "messages", "topic_filters": ["a"]}
            assert await ask(subscribe="x", **filters) == [("x", "subscribed")]
            assert await ask(subscribe="y", stream="outputs") == [("y", "subscribed")]
            assert await ask(subscribe="y", stream="outputs") == [("y", "error")]
            assert await ask(unsubscribe="y") == [("y", "unsubscribed")]
            assert await ask(unsubscribe="y") == [("", "error")]
            filters["topic_filters"] = ["#/a"]
            assert await ask(subscribe="z", **filters) == [("z", "error")]
            assert await ask(nonsense=1) == [("", "error")]
            feed_of(api).receive([message("a", b"one"), message("b")])
            (first,) = await socket.hear()
            assert (first["id"], first["event"]) == ("x", "message")
            assert first["data"]["payload"] == "one"
            await socket.say(subscribe="m", stream="metrics")
            heard: set[str] = set()
            while heard != {"subscribed", "metrics"}:
                heard |= {one["event"] for one in await socket.hear()}

    asyncio.run(talk())
    assert not feed_of(api).tenants
    assert len(api.services.live.readers) == 0


def is_let_in(api: Api, headers: dict[str, str], subprotocols: Sequence[str] = ()) -> str | None:
    """Open a WebSocket; return its subprotocol.

    Raises:
        Refused: It is not accepted.
    """

    async def talk() -> str | None:
        async with Socket(api.client.app, headers, subprotocols) as socket:
            return socket.subprotocol

    return asyncio.run(talk())


def test_a_browser_shows_its_token_as_a_subprotocol(api: Api) -> None:
    assert is_let_in(api, {}, ["mqlake.v1", f"bearer.{TOKEN}"]) == "mqlake.v1"
    with pytest.raises(Refused):
        is_let_in(api, {}, ["mqlake.v1", "bearer.wrong"])


@pytest.mark.parametrize("origin", [None, "http://elsewhere", "http://mqlake:99"])
def test_a_cookie_opens_a_websocket_only_for_our_own_pages(api: Api, origin: str | None) -> None:
    cookie = {"Cookie": f"{COOKIE}={log_in(api, token=TOKEN).cookies[COOKIE]}"}
    with pytest.raises(Refused):
        is_let_in(api, cookie if origin is None else {**cookie, "Origin": origin})
    assert is_let_in(api, {**cookie, "Origin": "http://mqlake"}) is None


def test_nobody_opens_a_websocket_unknown(api: Api) -> None:
    with pytest.raises(Refused):
        is_let_in(api, {})
