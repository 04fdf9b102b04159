"""What each kind of authenticator promises to the chain that asks it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trustme

from ingest.gateway.authentication.outcomes import NEXT, WRONG_PASSWORD, Accepted
from ingest.gateway.authentication.web import NO_ANSWER
from mqlake.rights.grants import read_grants
from tests.ingest.gateway.authentication.kinds import BROUGHT, KINDS, Kind
from tests.ingest.gateway.authentication.slapd import Slapd, running_slapd
from tests.rules.runner.postgres import Postgres, running_postgres

pytestmark = [pytest.mark.programs, pytest.mark.anyio]


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    with running_postgres() as found:
        yield found


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def directory(authority: trustme.CA) -> Iterator[Slapd]:
    with running_slapd(authority) as found:
        yield found


@pytest.fixture(params=KINDS)
async def kind(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Kind]:
    async with KINDS[request.param](tmp_path, request.getfixturevalue) as found:
        yield found


async def test_it_says_who_a_client_is(kind: Kind) -> None:
    found = await kind.ask("ann", kind.good)
    assert isinstance(found, Accepted)
    assert (found.username, found.is_verified) == ("ann", True)


async def test_it_says_what_a_client_may(kind: Kind) -> None:
    found = await kind.ask("ann", kind.good)
    assert isinstance(found, Accepted)
    brought = BROUGHT["ann"]
    assert found.grants == read_grants(*(brought[one] for one in ("roles", "rights", "attributes")))


async def test_who_has_rights_that_are_none_is_not_let_in(kind: Kind) -> None:
    for name, password in kind.odd:
        found = await kind.ask(name, password)
        assert found is not NEXT, "whoever is next must not let in somebody with less"
        assert not isinstance(found, Accepted)


async def test_a_wrong_password_is_denied_in_the_same_words(kind: Kind) -> None:
    for password in kind.bad:
        assert await kind.ask("ann", password) == WRONG_PASSWORD


async def test_whom_it_does_not_know_it_passes_on(kind: Kind) -> None:
    assert await kind.ask("bob", b"a password") is NEXT
    assert await kind.ask(None, None) is NEXT


async def test_the_user_name_of_connect_gives_nobody_a_name(kind: Kind) -> None:
    found = await kind.ask("bob", kind.good)
    if kind.names_users:
        assert not isinstance(found, Accepted)
    else:
        assert isinstance(found, Accepted)
        assert found.username == "ann"


@pytest.mark.parametrize("name", ["", "a\0b", "\u200b", "' OR ''='", "*)(uid=*", "ann)(|(a=*"])
async def test_odd_names_are_nobodys(kind: Kind, name: str) -> None:
    assert not isinstance(await kind.ask(name, b"open sesame"), Accepted)
    assert not isinstance(await kind.ask(name, b""), Accepted)


async def test_no_password_is_nobodys(kind: Kind) -> None:
    assert not isinstance(await kind.ask("ann", b""), Accepted)
    assert not isinstance(await kind.ask("ann", None), Accepted)


async def test_many_at_once_are_told_apart(kind: Kind) -> None:
    found = await asyncio.gather(
        *(kind.ask("ann", one) for one in (kind.good, kind.bad[0]) for _ in range(20))
    )
    assert [isinstance(one, Accepted) for one in found] == [True] * 20 + [False] * 20


async def test_who_is_away_has_not_allowed(kind: Kind) -> None:
    if kind.peer is None:
        return  # it asks nobody
    await kind.peer.stop()
    assert await kind.ask("ann", kind.good) == NO_ANSWER
    await kind.peer.start()


async def test_secrets_are_told_nobody(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await kind.ask("ann", kind.good)
    for password in kind.bad:
        await kind.ask("ann", password)
    if kind.peer is not None:
        await kind.peer.stop()
        await kind.ask("ann", kind.good)
        await kind.peer.start()
    told = "".join(f"{one.getMessage()} {one.__dict__}" for one in caplog.records) + repr(kind.link)
    for secret in kind.secrets:
        assert secret not in told
    for password in kind.bad:
        assert len(password) < 20 or password.decode() not in told


async def test_files_are_read_anew(kind: Kind) -> None:
    await kind.link.reload()
    assert isinstance(await kind.ask("ann", kind.good), Accepted)
