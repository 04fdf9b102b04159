"""Who is banned is not let in, and is cut off when the file is read again."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from ingest.gateway.settings.gateway import GatewaySettings
from ingest.protocol.packets import Connack, Connect
from ingest.protocol.reason_codes import ConnackReasonCode, DisconnectReasonCode
from mqlake.bans import BansError, KeptBan, ban_id_of, ban_key, decode_ban, encode_ban
from mqlake.clock import ManualClock
from mqlake.log.memory import MemoryLog, MemoryLogWriter
from mqlake.records.messages import GATEWAYS
from mqlake.security.credentials import make_verifier, set_user
from tests.ingest.gateway.harness import NAME, Client, Harness, new_log, running_gateway, until
from tests.ingest.gateway.test_survival import FIRST, SECOND, site

pytestmark = pytest.mark.anyio

PASSWORD = b"open sesame"
BANS = """
[[bans]]
client_ids = ["evil-*"]
users = ["mallory"]
reason = "floods"

[[bans]]
users = ["old"]
until = 2020-01-01T00:00:00Z
"""


@pytest.fixture
def bans(tmp_path: Path) -> Path:
    path = tmp_path / "bans.toml"
    write(path, BANS)
    return path


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("credentials") / "users"
    for name in ("ann", "mallory", "old"):
        set_user(path, name, make_verifier(PASSWORD.decode(), iterations=4096))
    return path


def write(path: Path, text: str) -> None:
    path.write_text(text)


def limits(**limits: Any) -> dict[str, Any]:
    return {"limits": GatewaySettings.model_validate({"limits": limits}).limits}


async def answer(
    harness: Harness, client_id: str, username: str | None = None, **more: Any
) -> Connack:
    password = more.pop("password", None if username is None else PASSWORD)
    level = more.pop("level", 5)
    client = await Client.open(harness.port, level)
    client.send(Connect(client_id, level, username=username, password=password, **more))
    return await client.expect(Connack)


async def test_who_is_banned_is_not_let_in(bans: Path, credentials: Path) -> None:
    async with running_gateway(bans_file=bans, credentials_file=credentials) as harness:
        for client_id, username in (("evil-1", "ann"), ("x", "mallory")):
            told = await answer(harness, client_id, username)
            assert told.reason_code is ConnackReasonCode.BANNED
            assert told.properties["reason_string"] == "banned: floods"
        wrong = await answer(harness, "x", "mallory", password=b"guessed")
        assert wrong.reason_code is ConnackReasonCode.BANNED, "before the password is looked at"
        for client_id, username in (("evil", "ann"), ("y", "old")):
            assert (await answer(harness, client_id, username)).reason_code == 0
        assert harness.counters.attempts_denied == 3


@pytest.mark.parametrize("level", [3, 4], ids=["3.1", "3.1.1"])
async def test_a_client_of_3_is_not_authorized(bans: Path, level: int) -> None:
    async with running_gateway(bans_file=bans) as harness:
        told = await answer(harness, "evil-1", level=level)
        assert told.reason_code is ConnackReasonCode.NOT_AUTHORIZED


async def test_an_address_is_banned(bans: Path) -> None:
    write(bans, '[[bans]]\naddresses = ["127.0.0.0/8"]\n')
    async with running_gateway(bans_file=bans) as harness:
        told = await answer(harness, "x")
        assert told.reason_code is ConnackReasonCode.BANNED
        assert told.properties["reason_string"] == "banned"


async def test_who_is_banned_later_is_cut_off_and_others_stay(
    bans: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with running_gateway(bans_file=bans) as harness:
        one = await Client.connect(harness.port, "one")
        other = await Client.connect(harness.port, "other")
        silent = await Client.open(harness.port)  # has not said who it is
        write(bans, '[[bans]]\nclient_ids = ["one"]\n')
        harness.gateway.reloading.begin()
        await one.expect_disconnect(DisconnectReasonCode.ADMINISTRATIVE_ACTION)
        await other.expect_nothing()
        silent.send(Connect("third", 5))
        assert (await silent.expect(Connack)).reason_code == 0
        assert (await answer(harness, "one")).reason_code is ConnackReasonCode.BANNED
        write(bans, "nonsense")
        harness.gateway.reloading.begin()
        await until(lambda: "bans not reloaded, the old ones stay" in caplog.messages)
        assert (await answer(harness, "one")).reason_code is ConnackReasonCode.BANNED


async def test_no_gateway_starts_with_a_file_that_cannot_be_used(bans: Path) -> None:
    write(bans, "[[bans]]\n")
    with pytest.raises(BansError, match="ban 1"):
        async with running_gateway(bans_file=bans):
            pass


async def test_who_guesses_passwords_is_banned_by_its_address(credentials: Path) -> None:
    rates = limits(failed_logins_before_ban=3)
    async with running_gateway(credentials_file=credentials, **rates) as harness:
        for _ in range(3):
            told = await answer(harness, "x", "ann", password=b"guessed")
            assert told.reason_code is ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert (await answer(harness, "x", "ann")).reason_code == 0, "three are borne"
        await answer(harness, "x", "ann", password=b"guessed")
        told = await answer(harness, "x", "ann")
        assert told.reason_code is ConnackReasonCode.BANNED
        assert "too many failed logins" in told.properties["reason_string"]


async def test_who_connects_again_and_again_is_banned_and_nobody_else(credentials: Path) -> None:
    settings = limits(connects_before_ban=2) | {"sessions_follow": "client_id"}
    async with running_gateway(credentials_file=credentials, **settings) as harness:
        for _ in range(5):  # is not let in, so it says nothing of the client
            await answer(harness, "x", "old", password=b"guessed")
        for _ in range(2):
            assert (await answer(harness, "x", "ann")).reason_code == 0
        told = await answer(harness, "x", "ann")
        assert told.reason_code is ConnackReasonCode.BANNED
        assert "connected too often" in told.properties["reason_string"]
        assert (await answer(harness, "y", "ann")).reason_code == 0
        assert (await answer(harness, "x", "old")).reason_code == 0


async def both(
    credentials: Path, stack: contextlib.AsyncExitStack, **settings: Any
) -> tuple[Harness, Harness]:
    """Run two gateways of one site, of which the second has no limits of its own."""
    log, router = await stack.enter_async_context(site())
    first, second = [
        await stack.enter_async_context(
            running_gateway(log=log, router=router, name=name, credentials_file=credentials, **more)
        )
        for name, more in ((FIRST, settings), (SECOND, {}))
    ]
    return first, second


async def test_who_guesses_at_one_gateway_is_banned_at_all_and_cuts_nobody_off(
    credentials: Path,
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        first, second = await both(credentials, stack, **limits(failed_logins_before_ban=1))
        here = await Client.connect(second.port, "here", username="ann", password=PASSWORD)
        for _ in range(2):
            await answer(first, "x", "ann", password=b"guessed")
        offences = second.gateway.bans.offences
        await until(lambda: offences.is_guesser("127.0.0.1"))
        for harness in (first, second):
            told = await answer(harness, "x", "ann")
            assert told.reason_code is ConnackReasonCode.BANNED
            assert "too many failed logins" in told.properties["reason_string"]
        assert not second.gateway.bans.of("x", "ann", "127.0.0.1")
        await say(first.log, "2", kept(users=["nobody"]))  # looks at all who are connected
        await until(lambda: second.gateway.bans.of("x", "nobody", ""))
        await here.expect_nothing()
        (ban_id,) = words(first.log).keys() - {"2"}
        ban = decode_ban(words(first.log)[ban_id] or b"")
        assert (ban.offence, ban.by, [str(one) for one in ban.addresses]) == (
            "guesses",
            FIRST,
            ["127.0.0.1/32"],
        )
        await say(first.log, ban_id, None)
        for harness in (first, second):
            guessers = harness.gateway.bans.offences
            await until(lambda: not guessers.is_guesser("127.0.0.1"))  # noqa: B023
            assert (await answer(harness, "x", "ann")).reason_code == 0


async def test_who_connects_again_and_again_is_banned_at_all_gateways_as_that_user(
    credentials: Path,
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        first, second = await both(credentials, stack, **limits(connects_before_ban=1))
        assert (await answer(first, "x", "ann")).reason_code == 0
        assert (await answer(first, "x", "ann")).reason_code is ConnackReasonCode.BANNED
        flapping = second.gateway.bans.offences.is_flapping
        await until(lambda: flapping("default", "x", "ann"))
        told = await answer(second, "x", "ann")
        assert told.reason_code is ConnackReasonCode.BANNED
        assert "connected too often" in told.properties["reason_string"]
        assert not flapping("acme", "x", "ann")
        assert (await answer(second, "y", "ann")).reason_code == 0
        assert (await answer(second, "x", "mallory")).reason_code is not ConnackReasonCode.BANNED


def words(log: MemoryLog) -> dict[str, bytes | None]:
    """Return the last words on each ban."""
    records = [(ban_id_of(one.key or b""), one.value) for one in log.records(GATEWAYS)]
    return {ban_id: value for ban_id, value in records if ban_id is not None}


def an_address(number: int) -> str:
    return f"10.0.{number // 256}.{number % 256}"


async def test_bans_for_offences_are_bounded_and_forgotten_when_they_are_over(
    credentials: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingest.gateway.limits.offences.MOST_TOLD", 3)
    rates, clock = limits(failed_logins_before_ban=1, ban_seconds=60), ManualClock()
    async with running_gateway(credentials_file=credentials, clock=clock, **rates) as harness:
        offences, log = harness.gateway.bans.offences, harness.log
        for number in range(5):
            for _ in range(2):
                offences.note_failed_login(an_address(number))
        await until(lambda: len(words(log)) == 3)
        assert all(offences.is_guesser(an_address(number)) for number in range(5))
        clock.advance(61)
        assert not any(offences.is_guesser(an_address(number)) for number in range(5))
        for _ in range(2):
            offences.note_failed_login(an_address(9))
        await until(lambda: len(words(log)) == 4)
        assert [value is None for value in words(log).values()] == [True, True, True, False]
        assert offences.is_guesser(an_address(9))


def kept(**fields: Any) -> bytes:
    return encode_ban(KeptBan(**fields, at=1, by="api-token"))


async def say(log: MemoryLog, ban_id: str, value: bytes | None) -> None:
    """Append what the API would."""
    writer = MemoryLogWriter(log)
    await writer.append_durably(GATEWAYS, ban_key(ban_id), value, [], partition=0)


async def test_a_ban_of_the_log_counts_at_once_and_until_it_is_lifted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_gateway() as harness:
        one = await Client.connect(harness.port, "one")
        other = await Client.connect(harness.port, "other")
        await say(harness.log, "1", kept(client_ids=["one"], reason="floods"))
        await say(harness.log, "2", kept(users=["nobody"]))
        await one.expect_disconnect(DisconnectReasonCode.ADMINISTRATIVE_ACTION)
        await other.expect_nothing()
        told = await answer(harness, "one")
        assert told.reason_code is ConnackReasonCode.BANNED
        assert told.properties["reason_string"] == "banned: floods"
        await say(harness.log, "3", b"nonsense")
        await until(lambda: "ban ignored" in caplog.messages)
        assert (await answer(harness, "one")).reason_code is ConnackReasonCode.BANNED
        await say(harness.log, "1", None)
        await say(harness.log, "4", kept(client_ids=["two"]))
        await until(lambda: harness.gateway.bans.of("two", None, ""))
        assert (await answer(harness, "one")).reason_code == 0


async def test_a_gateway_that_starts_knows_the_bans() -> None:
    log = new_log(NAME)
    for ban_id in "12":
        await say(log, ban_id, kept(client_ids=[f"client-{ban_id}"]))
    await say(log, "1", None)
    async with running_gateway(log=log) as harness:
        assert (await answer(harness, "client-2")).reason_code is ConnackReasonCode.BANNED
        assert (await answer(harness, "client-1")).reason_code == 0
        assert not harness.gateway.peers.are_there, "a ban is no gateway"
