"""A chain without a gateway: how often it asks, and how long it takes."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from ingest.gateway.authentication.authenticator import Authenticator
from ingest.gateway.authentication.chain import Chain
from ingest.gateway.authentication.outcomes import (
    ANONYMOUS,
    NEXT,
    TOO_MANY_FAILURES,
    WRONG_PASSWORD,
    Accepted,
    Attempt,
    Next,
    Verdict,
)
from mqlake.clock import ManualClock
from mqlake.security.credentials import Verifier, make_verifier, set_user

pytestmark = pytest.mark.anyio

FILE_THEN_TOKENS = ("credentials", "tokens")


class Link:
    """Answers at once, or when `is_open` is set."""

    def __init__(self, verdict: Verdict | Next = NEXT) -> None:
        self.verdict = verdict
        self.asked = 0
        self.is_open = asyncio.Event()

    async def check(self, attempt: Attempt) -> Verdict | Next:
        self.asked += 1
        await self.is_open.wait()
        return self.verdict

    async def reload(self) -> None: ...

    async def close(self) -> None: ...


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rounds of each password that is checked, in their order."""
    rounds: list[int] = []
    accepts = Verifier.accepts

    def count(verifier: Verifier, password: bytes) -> bool:
        rounds.append(verifier.iterations)
        return accepts(verifier, password)

    monkeypatch.setattr(Verifier, "accepts", count)
    return rounds


@pytest.fixture
def file(tmp_path: Path) -> Authenticator:
    path = tmp_path / "credentials"
    set_user(path, "alice", make_verifier("open sesame", iterations=4096))
    return Authenticator(
        path, allow_anonymous=None, failed_logins_per_minute=60, clock=ManualClock()
    )


def chain_of(file: Authenticator, link: Link, *, is_open: bool = True) -> Chain:
    if is_open:
        link.is_open.set()
    return Chain(file, {"tokens": link}, {"tokens": ""}, allow_anonymous=False)


async def ask(
    chain: Chain,
    username: str | None,
    password: bytes | None,
    names: Sequence[str] = FILE_THEN_TOKENS,
) -> Verdict:
    verdict = chain.check(Attempt(username, password, "c", "192.0.2.1", 5), names)
    return await verdict if isinstance(verdict, asyncio.Future) else verdict


@pytest.mark.parametrize("names", [FILE_THEN_TOKENS, ("tokens", "credentials")])
@pytest.mark.parametrize("verdict", [NEXT, WRONG_PASSWORD], ids=["next", "denied"])
async def test_who_is_refused_costs_the_same_work_whether_known_or_not(
    file: Authenticator, work: list[int], verdict: Verdict | Next, names: Sequence[str]
) -> None:
    chain = chain_of(file, Link(verdict))
    for username in ("alice", "bob"):
        assert await ask(chain, username, b"wrong", names) == WRONG_PASSWORD
    is_asked = verdict is NEXT or names == FILE_THEN_TOKENS
    assert work == ([4096, 4096] if is_asked else []), "who is denied before costs nothing either"


async def test_who_is_let_in_by_another_does_no_work_for_the_file(
    file: Authenticator, work: list[int]
) -> None:
    chain = chain_of(file, Link(Accepted("bob")))
    assert await ask(chain, "bob", b"a token") == Accepted("bob")
    assert await ask(chain, None, b"a token") == Accepted("bob")
    assert await ask(chain_of(file, Link()), None, None) == ANONYMOUS
    assert await ask(chain_of(file, Link()), None, b"a token") == WRONG_PASSWORD
    assert work == []


@pytest.mark.promise
async def test_guesses_at_once_do_not_pass_the_limit(file: Authenticator) -> None:
    link = Link()
    chain = chain_of(file, link, is_open=False)
    guesses = [asyncio.create_task(ask(chain, None, b"guess", ("tokens",))) for _ in range(200)]
    link.is_open.set()
    verdicts = await asyncio.gather(*guesses)
    assert link.asked == 60
    assert verdicts.count(WRONG_PASSWORD) == 60
    assert verdicts.count(TOO_MANY_FAILURES) == 140
