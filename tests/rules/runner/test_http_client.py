"""Requests to a real web server."""

import socket
import ssl
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import trustme

from mqlake.clock import ManualClock, SystemClock
from rules.actions.contract import ActionError, Failure, Request
from rules.actions.webhook import Webhook, WebhookArgs
from rules.runner.http_client import HttpClientPool
from rules.runner.settings import HttpSettings
from tests.cases import case
from tests.rules.runner.web import Web, running_web
from tests.rules.test_templates import work_for

pytestmark = pytest.mark.anyio

LOOPBACK = HttpSettings(allowed_networks=(ip_network("127.0.0.0/8"), ip_network("::1/128")))


@pytest.fixture
def web() -> Iterator[Web]:
    with running_web(Web()) as server:
        yield server


def client(settings: HttpSettings = LOOPBACK, **more: Any) -> HttpClientPool:
    options: dict[str, Any] = {"concurrency": 2, "timeout_seconds": 5.0, "verify_tls": True}
    return HttpClientPool(settings, **{"clock": SystemClock(), **options, **more})


def request(url: str) -> Request:
    return Request("POST", url, [("X-A", "b")], b"body")


async def failure_of(pool: HttpClientPool, url: str) -> ActionError:
    with pytest.raises(ActionError) as caught:
        await pool.send(request(url))
    await pool.close()
    return caught.value


class Services:
    """Gives what `http` asks for."""

    read_secret = check_secret = None

    def http(self, **options: Any) -> HttpClientPool:
        return HttpClientPool(LOOPBACK, SystemClock(), **options)


async def test_request_is_made_of_the_templates(web: Web) -> None:
    args = WebhookArgs.model_validate(
        {
            "url": f"{web.url}/a/${{site}}?q=${{q}}&n=${{n}}",
            "method": "PUT",
            "headers": {"X-Site": "at ${site}"},
            "body": '{"n": ${n}}',
        }
    )
    action = Webhook(args, Services())  # type: ignore[arg-type]
    await action.run([work_for({"site": "../x", "q": "a&b=c#d e", "n": 1})])
    await action.run([work_for({"site": "..", "q": "ü", "n": 2})])
    await action.close()
    first, second = web.asked
    assert (first.method, first.path) == ("PUT", "/a/..%2Fx?q=a%26b%3Dc%23d%20e&n=1")
    assert second.path == "/a/%2E%2E?q=%C3%BC&n=2"
    assert first.body == b'{"n": 1}'
    assert first.headers["X-Site"] == "at ../x"
    assert first.headers["Idempotency-Key"] == "r1/3/i:1:20:0/0"
    assert first.headers["Content-Type"] == "application/json"
    assert first.headers["Host"] == f"127.0.0.1:{web.port}"


async def test_a_row_cannot_add_a_header(web: Web) -> None:
    args = WebhookArgs.model_validate({"url": web.url, "headers": {"X-A": "${a}"}})
    action = Webhook(args, Services())  # type: ignore[arg-type]
    for text in ("x\r\nX-B: y", "x\nX-B: y", "x\0y"):
        with pytest.raises(ActionError, match="control character"):
            await action.run([work_for({"a": text})])
    await action.close()
    assert not web.asked


async def test_get_sends_no_body(web: Web) -> None:
    action = Webhook(WebhookArgs.model_validate({"url": web.url, "method": "GET"}), Services())  # type: ignore[arg-type]
    await action.run([work_for({"a": 1})])
    await action.close()
    assert (web.asked[0].method, web.asked[0].body) == ("GET", b"")


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (301, Failure.REFUSED),
        (302, Failure.REFUSED),
        (400, Failure.REFUSED),
        (404, Failure.REFUSED),
        (408, Failure.UNAVAILABLE),
        (429, Failure.UNAVAILABLE),
        (500, Failure.FAILED),
        (501, Failure.FAILED),
        (502, Failure.UNAVAILABLE),
        (503, Failure.UNAVAILABLE),
        (504, Failure.UNAVAILABLE),
    ],
)
async def test_answer_decides_what_to_do(web: Web, status: int, failure: Failure) -> None:
    web.answers = [status]
    web.headers = {"Location": "http://127.0.0.1:1/", "Retry-After": "7"}
    error = await failure_of(client(), web.url)
    assert error.failure is failure
    assert f"answer {status}" in str(error)
    assert error.retry_after_seconds == (7.0 if failure is Failure.UNAVAILABLE else 0.0)
    assert len(web.asked) == 1


ASKED = {
    "2": 2.0,
    "0": 0.0,
    "3600": 3_600.0,
    # By the server's clock, which is a day ahead of ours; in all three forms of a date.
    "Mon, 14 Sep 2020 12:26:45 GMT": 5.0,
    "Monday, 14-Sep-20 12:26:45 GMT": 5.0,
    "Mon Sep 14 12:26:45 2020": 5.0,
    "Mon, 14 Sep 2020 12:26:30 GMT": 0.0,
    # Nobody waits longer than a day.
    "86401": 86_400.0,
    "9" * 400: 86_400.0,
    "Fri, 31 Dec 9999 23:59:59 GMT": 86_400.0,
    # Nonsense asks for nothing.
    **dict.fromkeys(("soon", "-5", "2.5", "2 s", "", "\xb2", "1e3", "inf"), 0.0),
    **dict.fromkeys(("Mon, 99 Sep 2020 12:26:45 GMT", "2020-09-14T12:26:45Z"), 0.0),
    f"Mon, 14 Sep {'9' * 20} 12:26:45 GMT": 0.0,
    f"Mon, 14 Sep 2020 12:26:45 +{'9' * 20}": 0.0,
}
"""`Retry-After`, and the seconds in which nothing is sent."""


async def test_server_is_sent_nothing_before_the_time_that_it_has_asked_for(web: Web) -> None:
    for number, (header, seconds) in enumerate(ASKED.items()):
        with case(header):
            clock = ManualClock()  # it is 2020-09-13 12:26:40 UTC
            pool = client(clock=clock)
            web.asked.clear()
            web.answers = [(429, 503)[number % 2]]
            web.headers = {"Retry-After": header, "Date": "Mon, 14 Sep 2020 12:26:40 GMT"}
            with pytest.raises(ActionError) as caught:
                await pool.send(request(web.url))
            assert caught.value.failure is Failure.UNAVAILABLE
            assert caught.value.retry_after_seconds == seconds
            if seconds:
                clock.advance(seconds - 0.5)
                # Nor for another output that comes meanwhile.
                with pytest.raises(ActionError, match=r"no request before 0\.5 s") as caught:
                    await pool.send(request(web.url))
                assert caught.value.failure is Failure.UNAVAILABLE
                assert caught.value.retry_after_seconds == 0.5
                assert len(web.asked) == 1
                clock.advance(0.5)
            await pool.send(request(web.url))
            await pool.close()
            assert len(web.asked) == 2


async def test_connection_is_used_again_also_after_a_bad_answer(web: Web) -> None:
    pool = client()
    web.answers = [500]
    with pytest.raises(ActionError):
        await pool.send(request(web.url))
    for _ in range(3):
        await pool.send(request(web.url))
    assert len({id(one.connection) for one in web.asked}) == 1
    await pool.close()


async def test_slow_answer_is_no_answer(web: Web) -> None:
    web.delay_seconds = 1.0
    error = await failure_of(client(timeout_seconds=0.2), web.url)
    assert (error.failure, str(error)) == (Failure.UNAVAILABLE, "no answer within 0.2 s")


async def test_nobody_there_is_unavailable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        error = await failure_of(client(), f"http://127.0.0.1:{port}/")
    assert error.failure is Failure.UNAVAILABLE


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "127.1", "2130706433", "0x7f.1", "0", "[::ffff:127.0.0.1]"],
)
async def test_internal_address_is_refused_however_it_is_written(web: Web, host: str) -> None:
    error = await failure_of(client(HttpSettings()), f"http://{host}:{web.port}/")
    assert error.failure is Failure.REFUSED
    assert "not public" in str(error)
    assert not web.asked


async def test_one_internal_address_of_a_name_spoils_it(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No name server of a test can answer with two addresses.
    import asyncio

    async def answer(*_: object, **__: object) -> list[Any]:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, web.port))
            for address in ("93.184.215.14", "127.0.0.1")
        ]

    monkeypatch.setattr(type(asyncio.get_running_loop()), "getaddrinfo", answer, raising=False)
    pool = client(HttpSettings())
    error = await failure_of(pool, f"http://example.org:{web.port}/")
    assert "127.0.0.1, which is not public" in str(error)


async def test_internal_addresses_can_be_allowed(web: Web) -> None:
    pool = client(HttpSettings(allow_internal_addresses=True))
    await pool.send(request(f"http://localhost:{web.port}/"))
    await pool.close()
    assert len(web.asked) == 1


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secure_web(authority: trustme.CA) -> Iterator[Web]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with running_web(Web(), context) as server:
        yield server


async def test_certificate_must_be_valid(
    secure_web: Web, authority: trustme.CA, tmp_path: Path
) -> None:
    url = f"https://localhost:{secure_web.port}/"
    error = await failure_of(client(), url)
    assert "certificate" in str(error).lower()
    pem = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(pem)
    trusting = LOOPBACK.model_copy(update={"ca_certificates": pem})
    pool = client(trusting)
    await pool.send(request(url))
    await pool.close()
    error = await failure_of(client(trusting), f"https://127.0.0.1:{secure_web.port}/")
    assert "certificate" in str(error).lower()
    assert len(secure_web.asked) == 1


async def test_certificate_need_not_be_valid_when_the_rule_says_so(secure_web: Web) -> None:
    pool = client(verify_tls=False)
    await pool.send(request(f"https://127.0.0.1:{secure_web.port}/"))
    await pool.close()
    assert len(secure_web.asked) == 1
