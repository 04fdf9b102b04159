"""Alarms: what raises one, what becomes of it, and who is told."""

import asyncio
import json
import queue
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import MappingProxyType
from typing import Any

import pytest
from pydantic import ValidationError

from api.alarms.checks import Found, of_jobs, of_system
from api.alarms.materialised import MaterialisedAlarms
from api.alarms.notify import AlarmWebhook, Mail, Notice, NotTold, channels
from api.alarms.watch import KEPT_MS, RETRY_SECONDS, SEEN_MS, SILENT_MS, AlarmWatch
from api.jobs.jobs import Job
from api.log.following import Followed
from api.settings import AlarmSettings, MailSettings, WebhookSettings
from api.wiring import resources
from mqlake.errors import OperationalError
from mqlake.records.alarms import Acknowledgement, Alarm, alarm_record_key, encode_alarm
from mqlake.records.messages import ALARMS
from tests.api.conftest import Api
from tests.api.test_access import bearer, make_key

AWAY = Found("alarm", "gateway-2 does not answer", "nothing was heard of it")
DRAINED = Found("warning", "gateway-1 is draining", "it takes no new clients")


class Ears:
    """Keeps what it is told, unless it is unreachable."""

    name = "ears"

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self.is_unreachable = False
        self.again_seconds = 0.0

    async def send(self, notices: Any) -> None:
        if self.is_unreachable:
            raise NotTold("nobody listens", self.again_seconds)
        self.heard += [(one.state, one.what) for one in notices]


class Watched:
    """A watch over things that a test says."""

    def __init__(self, api: Api, **options: Any) -> None:
        self.found: list[Found] | None = []
        self.ears = Ears()
        self.api = api
        alarms = api.services.kept[resources.ALARMS]
        self.view = alarms.view
        parts = (alarms.view, alarms.changes, lambda: self.found, api.clock)
        self.watch = AlarmWatch(*parts, [self.ears], **options)

    def look(self, *found: Found) -> None:
        """Look once, with these found, and tell of it."""
        self.found = list(found)
        self.watch.tick()
        asyncio.run(self.watch.tell())


def test_what_is_wrong_is_found(api: Api) -> None:
    metrics = api.get("/metrics")
    process = {"name": "router", "healthy": False, "detail": "starting Spark", "restarts": 1}
    process |= {"uptime_seconds": 1, "rss_bytes": 1, "cpu_percent": 1, "figures": {}}
    api.hear("gateway-1")
    shown = api.get("/metrics")["gateways"][0]
    gateway = {**shown, "state": "draining", "overload_level": 7, "overload_step": 2}
    query = {"name": "history", "active": True, "lag_records": 60_000}
    metrics |= {
        "processes": [process, {**process, "name": "api", "healthy": True}],
        "gateways": [gateway, {**shown, "name": "gateway-2", "alive": False}],
        "queries": [
            query,
            {**query, "lag_records": None},
            {**query, "rule": "r", "tenant": "acme"},
        ],
        "dropped_per_second": 2.5,
    }
    source = api.services.metrics.source
    found = list(of_system(type(source.read()).model_validate(metrics)))
    assert [(one.severity, one.what) for one in found] == [
        ("alarm", "router is not healthy"),
        ("warning", "api was started again"),
        ("warning", "gateway-1 is draining"),
        ("warning", "gateway-1 has more to do than it can"),
        ("alarm", "gateway-2 does not answer"),
        ("alarm", "the query history is behind"),
        ("alarm", "the query of rule r is behind"),
        ("warning", "messages are dropped"),
    ]
    metrics["processes"][1]["uptime_seconds"] = 3_600.0
    recovered = list(of_system(type(source.read()).model_validate(metrics)))
    assert [one.what for one in recovered] == [one.what for one in found if one != found[1]]
    assert found[3].detail == ("its overload level is 7 of 10; publishers are read no further")
    assert found[6].tenant == "acme"
    assert len({one.id for one in found}) == len(found)
    healthy = api.services.metrics.source.read()
    assert [one.what for one in of_system(healthy)] == []


def test_jobs_that_did_not_come_to_their_end_are_found() -> None:
    jobs = [Job(str(n), "dry_run", "acme", "", 0, state=state) for n, state in enumerate(STATES)]
    found = list(of_jobs(jobs))
    assert [(one.what, one.tenant) for one in found] == [
        ("dry run 2 has failed", "acme"),
        ("dry run 3 was interrupted", "acme"),
    ]


STATES: Any = ("running", "succeeded", "failed", "interrupted", "cancelled")


def test_the_application_looks_at_what_it_knows(api: Api) -> None:
    watch: AlarmWatch = api.services.alarms.watch
    api.hear("gateway-1")
    watch.tick()
    assert api.get("/alarms")["items"] == []
    api.clock.advance(10)
    watch.tick()
    (shown,) = api.get("/alarms")["items"]
    assert (shown["what"], shown["state"]) == ("gateway-1 does not answer", "open")
    assert api.log.records[-1].log_topic == ALARMS
    api.hear("gateway-1")
    watch.tick()
    assert api.get("/alarms")["items"] == []
    (shown,) = api.get("/alarms", state="cleared")["items"]
    assert shown["cleared_at"] is not None


def test_nothing_is_raised_or_cleared_before_all_is_known(api: Api) -> None:
    one = Watched(api)
    one.look(AWAY)
    one.found = None
    one.watch.tick()
    assert [known.is_open for known in one.view.all()] == [True]
    one.view.is_complete = False
    one.look()
    assert [known.is_open for known in one.view.all()] == [True]


def test_an_alarm_is_told_once_when_it_lasts_and_when_it_is_over(api: Api) -> None:
    one = Watched(api, wait_seconds=30)
    one.look(AWAY, DRAINED)
    assert one.ears.heard == []
    api.clock.advance(31)
    one.look(AWAY, DRAINED)
    one.look(AWAY, DRAINED)
    assert one.ears.heard == [("raised", AWAY.what)]  # warnings are not asked for
    one.look()
    one.look()
    assert one.ears.heard[1:] == [("cleared", AWAY.what)]
    one.look(AWAY)
    one.look()
    assert len(one.ears.heard) == 2, "it was over before anybody had to know"
    again = one.view.get(AWAY.id)
    assert again is not None
    assert again.alarm.times == 2


def test_warnings_are_told_when_they_are_asked_for(api: Api) -> None:
    one = Watched(api, has_warnings=True)
    one.look(DRAINED)
    assert one.ears.heard == [("raised", DRAINED.what)]


def test_who_could_not_be_told_is_told_later(api: Api) -> None:
    one = Watched(api)
    one.ears.is_unreachable = True
    one.look(AWAY)
    assert one.watch.problems == {"ears": "nobody listens"}
    api.put_in("alarms", watch=one.watch)
    assert api.get("/alarms")["problems"] == {"ears": "nobody listens"}
    key = bearer(make_key(api, tenants=["acme"])["key"])
    assert api.request("GET", "/alarms", key).json()["problems"] == {}
    one.ears.is_unreachable = False
    one.look(AWAY)
    assert one.ears.heard == [], "not again at once"
    api.clock.advance(RETRY_SECONDS)
    one.look(AWAY)
    assert one.ears.heard == [("raised", AWAY.what)]
    assert one.watch.problems == {}


def test_an_acknowledged_alarm_is_told_to_nobody_until_it_is_raised_anew(api: Api) -> None:
    one = Watched(api, wait_seconds=30)
    one.look(AWAY)
    path = f"/alarms/{AWAY.id}/acknowledge"
    said = api.request("POST", path, json={"note": "I have pulled its plug"}).json()
    assert (said["state"], said["acknowledged_by"]) == ("acknowledged", "api-token")
    assert said["note"] == "I have pulled its plug"
    api.clock.advance(60)
    one.look(AWAY)
    one.look()
    assert one.ears.heard == []
    api.clock.advance(1)
    one.look(AWAY)
    assert api.get("/alarms")["items"][0]["state"] == "open"
    api.clock.advance(31)
    one.look(AWAY)
    assert one.ears.heard == [("raised", AWAY.what)]
    api.request("POST", path, json={})
    assert api.request("DELETE", path).json()["state"] == "open"
    assert api.request("POST", "/alarms/none/acknowledge", json={}).status_code == 404
    assert api.request("DELETE", "/alarms/none/acknowledge").status_code == 404


def test_an_alarm_is_of_one_process_until_that_is_silent(api: Api) -> None:
    first, second = Watched(api), Watched(api)
    first.look(AWAY)
    second.look(AWAY)
    second.look()
    assert api.get("/alarms")["items"] != [], "who does not see it does not clear another's"
    for _ in range(SILENT_MS // SEEN_MS + 1):
        api.clock.advance(SEEN_MS / 1000)
        first.look(AWAY)
    second.look()
    assert api.get("/alarms")["items"] != [], "it was seen all the time"
    api.clock.advance(SILENT_MS / 1000)
    second.look()
    assert api.get("/alarms")["items"] == []
    assert first.ears.heard == [("raised", AWAY.what)]
    assert second.ears.heard == [("cleared", AWAY.what)], "what the first had told of"


def test_what_is_over_for_a_week_is_forgotten(api: Api) -> None:
    one = Watched(api)
    one.look(AWAY)
    one.look()
    api.clock.advance(KEPT_MS / 1000)
    one.look()
    assert len(one.view.all()) == 1
    api.clock.advance(1)
    one.look()
    assert one.view.all() == []
    keys = [record.key for record in api.log.records if record.value is None]
    assert keys == [
        alarm_record_key("alarm", AWAY.id),
        alarm_record_key("acknowledgement", AWAY.id),
    ]


def test_alarms_of_other_tenants_are_not_shown(api: Api) -> None:
    one = Watched(api)
    acme = Found("alarm", "rule hot is paused", "", "rules", "hot", "acme")
    other = Found("alarm", "rule hot is paused", "", "rules", "hot", "default")
    assert acme.id != other.id
    one.look(AWAY, acme, other)
    key = bearer(make_key(api, "editor", tenants=["acme"])["key"])
    shown = api.request("GET", "/alarms", key).json()["items"]
    assert [found["id"] for found in shown] == [acme.id]
    for found, status in ((acme, 200), (other, 404), (AWAY, 404)):
        path = f"/alarms/{found.id}/acknowledge"
        assert api.request("POST", path, key, json={}).status_code == status
        assert api.request("DELETE", path, key).status_code == status
    api.services.kept[resources.ALARMS].changes.forget_tenant("acme")
    assert {known.id for known in one.view.all()} == {AWAY.id, other.id}


def test_lists_have_pages(api: Api) -> None:
    one = Watched(api)
    one.look(*(Found("alarm", f"thing {number}", "") for number in range(5)))
    seen, cursor = [], None
    while True:
        page = api.get("/alarms", limit=2, **({"cursor": cursor} if cursor else {}))
        seen += [shown["what"] for shown in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert sorted(seen) == [f"thing {number}" for number in range(5)]


def test_a_view_takes_records_once_and_refuses_what_it_cannot_read() -> None:
    view = MaterialisedAlarms()
    alarm = Alarm("alarm", "w", "d", "overview", "", None, 10, 10, "me")
    key = alarm_record_key("alarm", "1")
    said = Followed(ALARMS, 1, alarm_record_key("acknowledgement", "1"), b"")
    early = said._replace(value=encode_alarm(Acknowledgement(9, "ann", "", None)))
    late = said._replace(offset=2, value=encode_alarm(Acknowledgement(10, "ann", "", None)))
    assert view.take([Followed(ALARMS, 0, key, encode_alarm(alarm)), early], is_old=True) == []
    assert view.get("1").acknowledgement is None, "of the alarm before"  # type: ignore[union-attr]
    view.take([late, early], is_old=False)
    assert view.get("1").acknowledgement is not None  # type: ignore[union-attr]
    (refused,) = view.take([Followed(ALARMS, 3, key, b"{}")], is_old=False)
    assert "alarm is of version None" in str(refused)
    assert view.all() == []


# Channels

NOTICE = Notice(
    "1", "raised", "alarm", "gateway-2\r\nis away", "why", None, "2026-01-01T00:00:00+00:00", None
)


@contextmanager
def web_server(
    status: int = 204, answered: Mapping[str, str] = MappingProxyType({})
) -> Iterator[tuple[str, "queue.Queue[Any]"]]:
    """Serve POST on this machine; yield the URL and what comes."""
    heard: queue.Queue[Any] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            heard.put((self.path, dict(self.headers), json.loads(body)))
            self.send_response(status)
            for header in answered.items():
                self.send_header(*header)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hook?secret=s3cret", heard
        finally:
            server.shutdown()
            thread.join(30)


def webhook(url: str, **more: Any) -> AlarmWebhook:
    given = {"url": url, "allowed_networks": ["127.0.0.0/8"], **more}
    return AlarmWebhook(WebhookSettings.model_validate(given), "berlin")


def test_a_web_server_is_told() -> None:
    with web_server() as (url, heard):
        asyncio.run(webhook(url, token="t0ken").send([NOTICE]))
        path, headers, body = heard.get(timeout=30)
    assert path == "/hook?secret=s3cret"
    assert headers["Authorization"] == "Bearer t0ken"
    assert headers["Content-Type"] == "application/json"
    (told,) = body["alarms"]
    assert (body["site"], told["state"], told["severity"]) == ("berlin", "raised", "alarm")
    assert told["raised_at"] == "2026-01-01T00:00:00+00:00"


def test_a_web_server_is_told_nothing_before_the_time_that_it_has_asked_for(api: Api) -> None:
    with (
        web_server(503, {"Retry-After": "3600"}) as (url, _),
        pytest.raises(NotTold, match="answers 503") as caught,
    ):
        asyncio.run(webhook(url).send([NOTICE]))
    one = Watched(api)
    one.ears.is_unreachable, one.ears.again_seconds = True, caught.value.again_seconds
    one.look(AWAY)
    one.ears.is_unreachable = False
    api.clock.advance(3_600 - 1)
    one.look(AWAY)
    assert one.ears.heard == []
    api.clock.advance(1)
    one.look(AWAY)
    assert one.ears.heard == [("raised", AWAY.what)]


@pytest.mark.parametrize("status", [302, 400, 500])
def test_a_web_server_that_does_not_take_it_was_not_told(status: int) -> None:
    with web_server(status) as (url, _), pytest.raises(OperationalError, match=f"answers {status}"):
        asyncio.run(webhook(url).send([NOTICE]))


def test_no_request_goes_where_only_this_machine_can_reach() -> None:
    with web_server() as (url, heard):
        with pytest.raises(OperationalError, match=r"alarms\.webhook\.allowed_networks") as refused:
            asyncio.run(webhook(url, allowed_networks=[]).send([NOTICE]))
        assert "s3cret" not in str(refused.value)
        assert heard.empty()


def test_a_web_server_that_says_nothing_is_not_waited_for() -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as silent:
        url = f"http://127.0.0.1:{silent.server_address[1]}/"
        with pytest.raises(OperationalError, match="does not answer within"):
            asyncio.run(webhook(url, timeout_seconds=0.1).send([NOTICE]))


class MailServer(socketserver.ThreadingTCPServer):
    """Takes mail as RFC 5321 has it, without TLS; refuses recipients at `refused.example`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Smtp)
        self.mails: queue.Queue[tuple[list[str], str]] = queue.Queue()


class _Smtp(socketserver.StreamRequestHandler):
    server: MailServer

    def handle(self) -> None:
        recipients: list[str] = []
        self._say("220 ready")
        while line := self.rfile.readline():
            word = line.split()[0].upper() if line.split() else b""
            if word == b"RCPT":
                address = line.decode().partition("<")[2].partition(">")[0]
                if address.endswith("refused.example"):
                    self._say("550 nobody")
                    continue
                recipients.append(address)
            elif word == b"DATA":
                self._say("354 go on")
                lines = iter(self.rfile.readline, b".\r\n")
                self.server.mails.put((recipients, b"".join(lines).decode()))
            elif word == b"QUIT":
                self._say("221 bye")
                return
            self._say("250 ok")

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


@contextmanager
def mail_server() -> Iterator[MailServer]:
    with MailServer() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(30)


def mail(server: MailServer, **more: Any) -> Mail:
    given = {
        "host": "127.0.0.1",
        "port": server.server_address[1],
        "security": "none",
        "sender": "mqlake@example.org",
        "recipients": ["ann@example.org", "bob@example.org"],
        **more,
    }
    return Mail(MailSettings.model_validate(given), "berlin")


def test_people_are_told_by_one_mail() -> None:
    with mail_server() as server:
        asyncio.run(mail(server).send([NOTICE, NOTICE]))
        recipients, text = server.mails.get(timeout=30)
    assert recipients == ["ann@example.org", "bob@example.org"]
    head, _, body = text.partition("\r\n\r\n")
    subject = "Subject: mqlake berlin: raised: gateway-2 is away, and 1 more"
    assert subject in head.replace("\r\n ", " ").splitlines()
    assert "Auto-Submitted: auto-generated" in head
    assert body.count("RAISED: alarm: gateway-2") == 2


def test_a_mail_server_that_refuses_is_a_problem_with_a_reason() -> None:
    with mail_server() as server:
        sender = mail(server, recipients=["ann@refused.example"])
        with pytest.raises(OperationalError, match="550"):
            asyncio.run(sender.send([NOTICE]))
        # It does not speak TLS: without it nothing is sent.
        with pytest.raises(OperationalError, match="STARTTLS"):
            asyncio.run(mail(server, security="starttls").send([NOTICE]))
        assert server.mails.empty()
    with pytest.raises(OperationalError, match="did not take it"):
        asyncio.run(mail(server).send([NOTICE]))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"webhook": {"url": "ftp://a"}}, "url"),
        ({"webhook": {"url": "https://grüße.example"}}, "url"),
        ({"webhook": {"url": "http://hooks.example.org", "token": "t"}}, "https://"),
        ({"mail": {"host": "m", "sender": "a@b", "recipients": []}}, "recipients"),
        ({"mail": {"host": "m", "sender": "a@b\nBcc: c@d", "recipients": ["a@b"]}}, "sender"),
        ({"mail": {"host": "m", "sender": "a@b", "recipients": ["a@b"], "username": "u"}}, "both"),
        (
            {"mail": {"host": "m", "sender": "a@b", "recipients": ["a@b"], "security": "none"}}
            | {"wait_seconds": -1},
            "wait_seconds",
        ),
    ],
)
def test_settings_that_would_tell_the_wrong_ones_are_refused(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        AlarmSettings.model_validate(settings)


def test_who_is_named_is_told() -> None:
    settings = AlarmSettings.model_validate(
        {
            "webhook": {"url": "https://hooks.example.org/a"},
            "mail": {"host": "m", "sender": "a@b", "recipients": ["a@b"]},
        }
    )
    assert [one.name for one in channels(settings, "berlin")] == ["webhook", "mail"]
    assert channels(AlarmSettings(), "berlin") == ()
    assert "hooks.example.org" not in repr(settings)
