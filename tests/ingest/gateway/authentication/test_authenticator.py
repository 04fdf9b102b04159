import asyncio
from pathlib import Path
from typing import Any

import pytest

from ingest.gateway.authentication import passwords as module
from ingest.gateway.authentication.authenticator import Authenticator
from ingest.gateway.authentication.chain import Chain
from ingest.gateway.authentication.outcomes import (
    ANONYMOUS,
    TOO_MANY_CHECKS,
    TOO_MANY_FAILURES,
    WRONG_PASSWORD,
    Accepted,
    Attempt,
    Refused,
    Verdict,
)
from ingest.gateway.authentication.scram import ScramServer
from ingest.protocol.reason_codes import ConnackReasonCode
from mqlake.clock import ManualClock
from mqlake.security.credentials import (
    CredentialsError,
    Verifier,
    make_verifier,
    remove_user,
    set_user,
)
from tests.ingest.gateway.harness import until

pytestmark = pytest.mark.anyio

ADDRESS = "192.0.2.1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "credentials"
    set_user(path, "alice", make_verifier("open sesame", iterations=4096))
    return path


def new(path: Path | None, **settings: Any) -> Authenticator:
    settings = {
        "allow_anonymous": None,
        "failed_logins_per_minute": 60,
        "clock": ManualClock(),
        **settings,
    }
    return Authenticator(path, **settings)


def overwrite(path: Path, text: str, *, mode: int = 0o600) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


async def check(
    authenticator: Authenticator,
    username: str | None,
    password: str | bytes | None,
    address: str = ADDRESS,
) -> Verdict:
    """Have an attempt judged as the gateway does, without other authenticators."""
    data = password.encode() if isinstance(password, str) else password
    chain = Chain(authenticator, {}, {}, allow_anonymous=False)
    verdict = chain.check(Attempt(username, data, "c", address, 5), ())
    return await verdict if isinstance(verdict, asyncio.Future) else verdict


async def test_user_with_the_password_is_let_in(path: Path) -> None:
    authenticator = new(path)
    assert await check(authenticator, "alice", "open sesame") == Accepted("alice")


async def test_user_name_is_the_prepared_one(path: Path) -> None:
    assert await check(new(path), "\u00adalice", "open\u00a0sesame") == Accepted("alice")


@pytest.mark.parametrize(
    ("username", "password"),
    [
        ("alice", "open"),
        ("alice", ""),
        ("alice", None),
        ("alice", b"\xff"),
        ("alice", "open sesame\x00"),
        ("bob", "open sesame"),
        ("Alice", "open sesame"),
        ("", "open sesame"),
        ("a" * 5000, "open sesame"),
        ("alice", "a" * 65_535),
    ],
)
async def test_anybody_else_is_not(path: Path, username: str, password: str | None) -> None:
    assert await check(new(path), username, password) is WRONG_PASSWORD


@pytest.mark.parametrize(
    ("has_file", "allow", "username", "verdict"),
    [
        (False, None, None, Accepted(None, is_verified=False)),
        (False, None, "anyone", Accepted("anyone", is_verified=False)),
        (False, False, None, ANONYMOUS),
        (False, False, "anyone", ANONYMOUS),
        (True, None, None, ANONYMOUS),
        (True, False, None, ANONYMOUS),
        (True, True, None, Accepted(None, is_verified=False)),
        (True, True, "anyone", WRONG_PASSWORD),
    ],
)
async def test_who_needs_no_password(
    path: Path, has_file: bool, allow: bool | None, username: str | None, verdict: Verdict
) -> None:
    authenticator = new(path if has_file else None, allow_anonymous=allow)
    assert await check(authenticator, username, "x") == verdict


async def test_known_and_unknown_users_cost_the_same_work(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []
    accepts = Verifier.accepts

    def count(verifier: Verifier, password: bytes) -> bool:
        rounds.append(verifier.iterations)
        return accepts(verifier, password)

    monkeypatch.setattr(Verifier, "accepts", count)
    authenticator = new(path)
    for username in ("alice", "bob"):
        await check(authenticator, username, "wrong")
    assert rounds == [4096, 4096]


async def test_client_that_comes_back_does_not_wait(path: Path) -> None:
    authenticator = new(path)
    await check(authenticator, "alice", "open sesame")
    assert authenticator.verdict_at_once("alice", b"open sesame") == Accepted("alice")
    assert authenticator.verdict_at_once("alice", b"open") is None


async def test_changed_file_counts_from_the_reload_on(path: Path) -> None:
    authenticator = new(path)
    await check(authenticator, "alice", "open sesame")
    set_user(path, "alice", make_verifier("new", iterations=4096))
    set_user(path, "bob", make_verifier("bob's", iterations=4096))
    assert await check(authenticator, "alice", "open sesame") == Accepted("alice")
    assert await authenticator.reload() == 2
    assert await check(authenticator, "alice", "open sesame") is WRONG_PASSWORD
    assert await check(authenticator, "alice", "new") == Accepted("alice")
    assert await check(authenticator, "bob", "bob's") == Accepted("bob")
    remove_user(path, "bob")
    await authenticator.reload()
    assert await check(authenticator, "bob", "bob's") is WRONG_PASSWORD


async def test_broken_file_leaves_the_users_as_they_were(path: Path) -> None:
    authenticator = new(path)
    overwrite(path, "", mode=0o644)
    with pytest.raises(CredentialsError, match="open to others"):
        await authenticator.reload()
    overwrite(path, "alice\n")
    with pytest.raises(CredentialsError, match="line 1"):
        await authenticator.reload()
    assert await check(authenticator, "alice", "open sesame") == Accepted("alice")
    with pytest.raises(CredentialsError, match="line 1"):
        new(path)


async def test_reload_without_a_file_is_nothing() -> None:
    assert await new(None).reload() is None


async def test_address_that_guesses_has_to_wait(path: Path) -> None:
    clock = ManualClock()
    authenticator = new(path, failed_logins_per_minute=3, clock=clock)
    await check(authenticator, "alice", "open sesame")
    set_user(path, "bob", make_verifier("bob's", iterations=4096))
    await authenticator.reload()
    for guess in ("a", b"\xff", "c"):
        assert await check(authenticator, "bob", guess) is WRONG_PASSWORD
    assert await check(authenticator, "bob", "bob's") is TOO_MANY_FAILURES
    # Its neighbours behind one address are not shut out, nor is anybody elsewhere.
    assert await check(authenticator, "alice", "open sesame") == Accepted("alice")
    assert await check(authenticator, "bob", "bob's", "192.0.2.2") == Accepted("bob")
    clock.advance(20)
    assert await check(authenticator, "bob", "b") is WRONG_PASSWORD
    assert await check(authenticator, "carol", "b") is TOO_MANY_FAILURES


async def test_guesses_that_come_at_once_are_no_more(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[bytes] = []
    accepts = Verifier.accepts

    def count(verifier: Verifier, password: bytes) -> bool:
        checked.append(password)
        return accepts(verifier, password)

    monkeypatch.setattr(Verifier, "accepts", count)
    monkeypatch.setattr(module, "THREADS", 1)
    authenticator = new(path, failed_logins_per_minute=3)
    verdicts = await asyncio.gather(
        *(check(authenticator, "alice", f"guess {number}") for number in range(20)),
        check(authenticator, "alice", "open sesame", "192.0.2.2"),
    )
    assert verdicts == [WRONG_PASSWORD] * 3 + [TOO_MANY_FAILURES] * 17 + [Accepted("alice")]
    assert len(checked) == 4


async def test_checks_that_wait_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_CHECKS", 2)
    authenticator = new(path)
    found = await asyncio.gather(*(check(authenticator, "alice", "open sesame") for _ in range(3)))
    assert found == [Accepted("alice"), Accepted("alice"), TOO_MANY_CHECKS]
    assert await check(authenticator, "alice", "wrong") is WRONG_PASSWORD


async def test_check_that_nobody_waits_for_is_dropped(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_CHECKS", 2)
    authenticator = new(path)
    checks = [asyncio.create_task(check(authenticator, "alice", "wrong")) for _ in range(50)]
    await until(lambda: authenticator.passwords.are_too_many)
    for one in checks:
        one.cancel()
    await asyncio.gather(*checks, return_exceptions=True)
    await until(lambda: not authenticator.passwords.are_too_many)
    again = [check(authenticator, "alice", "open sesame") for _ in range(2)]
    assert await asyncio.gather(*again) == [Accepted("alice")] * 2


async def test_remembered_logins_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REMEMBERED_LOGINS", 1)
    set_user(path, "bob", make_verifier("bob's", iterations=4096))
    authenticator = new(path)
    await check(authenticator, "alice", "open sesame")
    await check(authenticator, "bob", "bob's")
    assert authenticator.verdict_at_once("alice", b"open sesame") is None
    assert authenticator.verdict_at_once("bob", b"bob's") == Accepted("bob")


async def test_methods_are_those_with_a_file_behind_them(path: Path) -> None:
    assert isinstance(new(path).open_exchange("SCRAM-SHA-256"), ScramServer)
    for authenticator, method in ((new(path), "SCRAM-SHA-1"), (new(None), "SCRAM-SHA-256")):
        assert authenticator.open_exchange(method) == Refused(
            ConnackReasonCode.BAD_AUTHENTICATION_METHOD, "no such authentication method"
        )


async def test_closing_drops_what_waits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "THREADS", 1)
    monkeypatch.setattr(module, "MAX_WAITING_CHECKS", 4)
    authenticator = new(path)
    waiting = [asyncio.create_task(check(authenticator, "alice", "wrong")) for _ in range(100)]
    await until(lambda: authenticator.passwords.are_too_many)
    authenticator.close()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert any(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
