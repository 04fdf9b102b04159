"""A WebSocket over a real socket: what the server itself takes part in."""

import json
import socket
from typing import Any
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Event, Request, TextMessage

from launcher.testing.systems import await_condition
from mqlake.processes.status import read_state
from tests.api.conftest import Api, api
from tests.api.live.records import message
from tests.api.test_api import TOKEN
from tests.mqlake.test_api_client import served

__all__ = ["api", "served"]  # fixtures of others


class Browser:
    """A client that waits for what it wants."""

    def __init__(self, url: str, subprotocols: list[str]) -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname, address.port or 80), timeout=60)
        self._connection = WSConnection(ConnectionType.CLIENT)
        self._events: list[Event] = []
        self._send(
            Request(host=address.netloc, target="/api/v1/live/ws", subprotocols=subprotocols)
        )

    def next(self) -> Event:
        while not self._events:
            self._connection.receive_data(self._socket.recv(65_536) or None)
            self._events += self._connection.events()
        return self._events.pop(0)

    def say(self, **what: Any) -> None:
        self._send(TextMessage(json.dumps(what)))

    def hear(self) -> Any:
        text = ""
        while True:
            event = self.next()
            assert isinstance(event, TextMessage), event
            text += event.data
            if event.message_finished:
                return json.loads(text)

    def close(self) -> None:
        self._send(CloseConnection(1000))
        while not isinstance(self.next(), CloseConnection):
            pass
        self._socket.close()

    def _send(self, event: Event) -> None:
        self._socket.sendall(self._connection.send(event))


def test_a_browser_opens_says_and_hears(served: Api) -> None:
    feed = served.services.live.messages
    browser = Browser(read_state(served.data_dir).api_url, ["mqlake.v1", f"bearer.{TOKEN}"])
    accepted = browser.next()
    assert isinstance(accepted, AcceptConnection)
    assert accepted.subprotocol == "mqlake.v1"
    browser.say(subscribe="x", stream="messages", topic_filters=["a/#"])
    assert [one["event"] for one in browser.hear()] == ["subscribed"]
    feed.receive([message("a/1", b"one"), message("b")])
    assert [one["data"]["topic_name"] for one in browser.hear()] == ["a/1"]
    browser.close()
    await_condition(lambda: not feed.tenants, "the stream is gone")
