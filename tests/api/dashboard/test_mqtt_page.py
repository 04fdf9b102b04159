"""The MQTT client of the dashboard in a browser, with a gateway that runs beside it."""

import asyncio
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from paho.mqtt.publish import single
from playwright.sync_api import Locator, expect

from tests.api.dashboard.conftest import Served
from tests.ingest.gateway.harness import free_port, running_gateway
from tests.integration.dashboard.browser import Dashboard

pytestmark = pytest.mark.programs


@contextmanager
def gateway_beside(**settings: Any) -> Iterator[tuple[str, "queue.Queue[None]"]]:
    """Run a gateway in a thread; yield its WebSocket address and a queue: an item ends it."""
    port = free_port()
    started: queue.Queue[None] = queue.Queue()
    over: queue.Queue[None] = queue.Queue()

    async def serve() -> None:
        listener = {"kind": "ws", "port": port, "host": "127.0.0.1"}
        async with running_gateway(listeners=(listener,), **settings):
            started.put(None)
            await asyncio.to_thread(over.get)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        started.get(timeout=30)
        yield f"ws://127.0.0.1:{port}/mqtt", over
    finally:
        over.put(None)
        thread.join(30)


def section(dashboard: Dashboard, name: str) -> Locator:
    heading = dashboard.page.get_by_role("heading", name=name)
    return dashboard.page.locator("section").filter(has=heading)


def publish(dashboard: Dashboard, topic: str, payload: str, qos: int) -> None:
    panel = section(dashboard, "Publish")
    panel.get_by_label("Topic name").fill(topic)
    panel.get_by_label("QoS").select_option(str(qos))
    panel.get_by_label("Content type").fill("text/plain")
    panel.get_by_label("Payload").fill(payload)
    panel.get_by_role("button", name="Publish").click()


def subscribe(dashboard: Dashboard, topic_filter: str, qos: int = 1) -> None:
    panel = section(dashboard, "Subscribe")
    panel.get_by_label("Topic filter").fill(topic_filter)
    panel.get_by_label("QoS").select_option(str(qos))
    panel.get_by_role("button", name="Subscribe", exact=True).click()


def open_connection(dashboard: Dashboard, client_id: str) -> None:
    dashboard.open("mqtt")
    expect(dashboard.page.get_by_label("Gateway")).not_to_have_value("")
    dashboard.page.get_by_label("Client identifier").fill(client_id)
    dashboard.page.get_by_role("button", name="Connect", exact=True).click()


def connect(dashboard: Dashboard, client_id: str) -> None:
    open_connection(dashboard, client_id)
    expect(dashboard.page.get_by_text("connected", exact=True)).to_be_visible()


def test_messages_come_back_and_the_end_has_a_reason(dashboard: Dashboard, served: Served) -> None:
    with gateway_beside() as (url, over):
        served.api.hear("gateway-1", listeners=[url])
        page = dashboard.page
        connect(dashboard, "page")
        chips = section(dashboard, "Subscribe").get_by_role("listitem")
        for qos, said in ((0, "Sent."), (1, "PUBACK has come"), (2, "PUBCOMP has come")):
            subscribe(dashboard, "a/#", qos)
            expect(chips).to_contain_text(f"a/# QoS {qos}")
            publish(dashboard, f"a/{qos}", f"grüße {qos}", qos)
            expect(section(dashboard, "Publish")).to_contain_text(said)
            row = page.get_by_role("row", name=f"a/{qos}")
            expect(row).to_contain_text(f"grüße {qos}")
            expect(row).to_contain_text('{"content_type":"text/plain"}')
        port = urlsplit(url).port or 0
        single("a/bytes", b"\xff\x00", hostname="127.0.0.1", port=port, transport="websockets")
        expect(page.get_by_role("row", name="a/bytes")).to_contain_text("2 B, not text")
        subscribe(dashboard, "a/#/b")
        expect(section(dashboard, "Subscribe").get_by_role("alert")).to_contain_text("a/#/b")
        page.get_by_role("button", name="Unsubscribe from a/#").click()
        expect(chips).to_have_count(0)
        page.get_by_role("button", name="Disconnect").click()
        expect(page.get_by_text("not connected", exact=True)).to_be_visible()
        connect(dashboard, "page")
        over.put(None)
        expect(page.get_by_text("the server ended it: 0x8b, server shutting down")).to_be_visible()
        expect(page.get_by_role("button", name="Publish")).to_be_disabled()


def test_what_is_refused_is_said(dashboard: Dashboard, served: Served) -> None:
    with gateway_beside(allow_anonymous=False) as (url, _):
        served.api.hear("gateway-1", listeners=[url])
        page = dashboard.page
        open_connection(dashboard, "page")
        alert = section(dashboard, "Connection").get_by_role("alert")
        expect(alert).to_contain_text("Refused: 0x87, not authorized")
        expect(page.get_by_text("not connected", exact=True)).to_be_visible()
