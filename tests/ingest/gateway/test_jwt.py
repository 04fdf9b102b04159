"""Clients that log in with a token as their password: who they are, what they may do, how long."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ingest.gateway.authentication import validity
from ingest.gateway.settings.gateway import GatewaySettings
from ingest.protocol.packets import Connack, Connect, Suback, Subscribe, Subscription, Will
from ingest.protocol.reason_codes import ConnackReasonCode, DisconnectReasonCode, SubackReasonCode
from mqlake.bans import KeptBan, ban_key, encode_ban
from mqlake.clock import ManualClock
from mqlake.errors import SettingsError
from mqlake.log.memory import MemoryLogWriter
from mqlake.records.messages import GATEWAYS
from mqlake.security.credentials import make_verifier, set_user
from mqlake.settings import load
from tests.ingest.gateway.authentication.signing import AUDIENCE, ISSUER, SECRET, token
from tests.ingest.gateway.harness import Client, Harness, running_gateway, until

pytestmark = pytest.mark.anyio

REFUSED = ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD
RULES = """
[roles]
pumps = []

[[rules]]
effect = "allow"
actions = ["connect"]
authenticated = true
client_ids = ["%u", "%u-*"]

[[rules]]
effect = "allow"
actions = ["publish", "subscribe", "receive"]
topics = ["pumps/%u/#"]
roles = ["pumps"]
"""
RIGHTS: list[dict[str, Any]] = [
    {"actions": ["publish", "subscribe", "receive"], "topics": ["mine/%c/#"]},
    {"actions": ["connect"], "client_ids": ["spare"]},
]
TOKENS: dict[str, Any] = {
    "kind": "jwt",
    "algorithms": ["HS256"],
    "issuer": ISSUER,
    "audience": AUDIENCE,
    "roles_claim": "roles",
    "rights_claim": "rights",
}
LOGIN: dict[str, Any] = {"roles": ["pumps"], "rights": RIGHTS}


FILE: dict[str, Any] = {"secret_file": "secrets"}


@asynccontextmanager
async def gateway(folder: Path, rules: str = RULES, **more: Any) -> AsyncIterator[Harness]:
    secrets, rights = folder / "secrets", folder / "rights.toml"
    secrets.write_text(SECRET)
    secrets.chmod(0o600)
    rights.write_text(rules)
    tokens = {**TOKENS, "secret_file": secrets}
    known = {"authenticators": {"tokens": tokens}, "authenticate_by": ["tokens"]} | more
    async with running_gateway(rights_file=rights, **known) as harness:
        yield harness


async def refusal(harness: Harness, client_id: str, **fields: Any) -> Connack:
    client = await Client.open(harness.port, 5)
    client.send(Connect(client_id, 5, **fields))
    return await client.expect(Connack)


async def ask(client: Client, topic_filter: str) -> SubackReasonCode:
    client.send(Subscribe(client.next_packet_id(), [Subscription(topic_filter, 0)]))
    (code,) = (await client.expect(Suback)).reason_codes
    return code


@pytest.mark.parametrize("level", [3, 4, 5])
async def test_a_token_says_who_the_client_is_and_what_it_may_do(
    level: int, tmp_path: Path
) -> None:
    async with gateway(tmp_path) as harness:
        client = await Client.connect(
            harness.port, "pump-7", level=level, username="any", password=token(**LOGIN)
        )
        session = harness.gateway.sessions.get("default", "pump-7")
        assert (session.username, session.principal) == ("pump-7", "pump-7")
        for topic in ("pumps/pump-7/a", "mine/pump-7/a"):
            await client.subscribe(topic, 1)
            await client.publish(topic, b"x", 1)
            assert (await client.message()).topic_name == topic
        refused = 0x80 if level < 5 else SubackReasonCode.NOT_AUTHORIZED
        for topic in ("pumps/pump-8/a", "mine/#", "mine/+/a", "#"):
            if level > 3:
                assert await ask(client, topic) == refused
        await client.disconnect()


async def test_a_token_without_rights_has_those_of_the_file(tmp_path: Path) -> None:
    async with gateway(tmp_path) as harness:
        client = await Client.connect(harness.port, "pump-7", username="x", password=token())
        assert await ask(client, "mine/pump-7/a") is SubackReasonCode.NOT_AUTHORIZED
        found = await refusal(harness, "spare", username="x", password=token())
        assert found.reason_code is ConnackReasonCode.NOT_AUTHORIZED
        await Client.connect(harness.port, "spare", username="x", password=token(**LOGIN))


async def test_what_is_wrong_with_a_token_stands_in_the_log_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    bad = {
        token(exp=time.time() - 100): "its time is over (exp)",
        token("another secret of 32 bytes at least"): "its signature is by none of the keys",
        token(aud="x"): "it is for another audience (aud)",
        token(algorithm="HS512"): "signed by an algorithm that is not in algorithms",
    }
    async with gateway(tmp_path) as harness:
        answers = [
            await refusal(harness, "pump-7", username="x", password=password) for password in bad
        ]
    assert {one.reason_code for one in answers} == {REFUSED}
    assert len({str(one.properties) for one in answers}) == 1
    refused = [one for one in caplog.records if one.getMessage() == "token refused"]
    assert [one.__dict__["fields"]["reason"] for one in refused] == list(bad.values())
    told = "".join(f"{one.getMessage()} {one.__dict__}" for one in caplog.records)
    for password in bad:
        assert not any(part in told for part in password.decode().split(".")[1:])


async def test_the_connection_ends_with_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validity, "LOOK_SECONDS", 0.01)
    clock = ManualClock(now_ms=time.time_ns() // 1_000_000)
    async with gateway(tmp_path, clock=clock) as harness:
        password = token(exp=time.time() + 600, **LOGIN)
        client = await Client.connect(harness.port, "pump-7", username="x", password=password)
        clock.step_calendar(599_000)
        await client.expect_answered()
        clock.step_calendar(32_000)  # and the leeway
        await client.expect_disconnect(DisconnectReasonCode.NOT_AUTHORIZED)


async def test_a_token_that_is_revoked_lets_nobody_in_and_cuts_who_came_by_it(
    tmp_path: Path,
) -> None:
    stolen = token(jti="stolen", **LOGIN)
    own = token(jti="own", **LOGIN)
    spare = "spare"  # the rights of these tokens let their clients have it
    async with gateway(tmp_path) as harness:
        thief = await Client.connect(harness.port, spare, password=stolen)
        revoked = encode_ban(KeptBan(tokens=("stolen",), reason="lost", at=1, by="olga"))
        writer = MemoryLogWriter(harness.log)
        await writer.append_durably(GATEWAYS, ban_key("1"), revoked, [], partition=0)
        await thief.expect_disconnect(DisconnectReasonCode.ADMINISTRATIVE_ACTION)
        answer = await refusal(harness, spare, password=stolen)
        assert answer.reason_code is ConnackReasonCode.BANNED
        assert answer.properties["reason_string"] == "banned: lost"
        # Another token of the same user is good, and so is one without a claim jti.
        for password in (own, token(**LOGIN)):
            assert (await refusal(harness, spare, password=password)).reason_code == 0
        answer = await refusal(harness, spare, password=token(jti=7, **LOGIN))
        assert answer.reason_code is ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD


async def test_a_will_is_published_by_the_rights_of_the_token(tmp_path: Path) -> None:
    async with gateway(tmp_path) as harness:
        for topic, rights in (("mine/pump-7/w", LOGIN), ("pumps/pump-7/w", {"roles": "pumps"})):
            client = await Client.connect(
                harness.port,
                "pump-7",
                username="x",
                password=token(**rights),
                will=Will(topic, b"gone", 1),
            )
            client.cut()
        found = await refusal(
            harness, "pump-7", username="x", password=token(), will=Will("mine/pump-7/w", b"")
        )
        assert found.reason_code is ConnackReasonCode.NOT_AUTHORIZED
        await until(lambda: len([one for one in harness.inbound() if one.value == b"gone"]) == 2)


async def test_rules_of_the_file_come_first_and_change_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with gateway(tmp_path) as harness:
        client = await Client.connect(harness.port, "pump-7", username="x", password=token(**LOGIN))
        assert await ask(client, "mine/pump-7/a") == SubackReasonCode.GRANTED_QOS_0
        deny = '\n[[rules]]\neffect = "deny"\nactions = ["subscribe"]\ntopics = ["mine/#"]\n'
        (tmp_path / "rights.toml").write_text(RULES + deny)
        harness.gateway.reloading.begin()
        await until(lambda: "rights reloaded" in caplog.messages)
        assert await ask(client, "mine/pump-7/b") is SubackReasonCode.NOT_AUTHORIZED
        assert await ask(client, "pumps/pump-7/b") == SubackReasonCode.GRANTED_QOS_0


async def test_secrets_are_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    other = "another secret of 32 bytes at least"
    async with gateway(tmp_path) as harness:
        new: dict[str, Any] = {"username": "x", "password": token(other)}
        assert (await refusal(harness, "pump-7", **new)).reason_code is REFUSED
        (tmp_path / "secrets").write_text(f"{SECRET}\n{other}\n")
        harness.gateway.reloading.begin()
        await until(lambda: "rights reloaded" in caplog.messages)
        await Client.connect(harness.port, "pump-7", **new)
        (tmp_path / "secrets").write_text("short")
        harness.gateway.reloading.begin()
        await until(lambda: "keys of tokens not reloaded, the old ones stay" in caplog.messages)
        await Client.connect(harness.port, "pump-7-1", **new)


async def test_passwords_are_passed_on_to_the_file(tmp_path: Path) -> None:
    credentials = tmp_path / "users"
    set_user(credentials, "ann", make_verifier("open sesame", iterations=4096))
    chain: dict[str, Any] = {
        "authenticate_by": ["tokens", "credentials"],
        "credentials_file": credentials,
    }
    async with gateway(tmp_path, **chain) as harness:
        await Client.connect(harness.port, "ann", username="ann", password=b"open sesame")
        await Client.connect(harness.port, "pump-7", username="ann", password=token())
        session = harness.gateway.sessions.get("default", "pump-7")
        assert session.principal == "pump-7"
        found = await refusal(harness, "ann-2", username="ann", password=token(exp=1))
        assert found.reason_code is REFUSED


async def test_users_of_one_are_not_those_of_another_with_the_same_name(tmp_path: Path) -> None:
    credentials = tmp_path / "users"
    set_user(credentials, "pump-7", make_verifier("open sesame", iterations=4096))
    tokens = {**TOKENS, "secret_file": tmp_path / "secrets", "username_prefix": "id:"}
    chain: dict[str, Any] = {
        "authenticators": {"tokens": tokens},
        "authenticate_by": ["tokens", "credentials"],
        "credentials_file": credentials,
    }
    async with gateway(tmp_path, **chain) as harness:
        kept = {"session_expiry_interval": 100}
        mine = await Client.connect(
            harness.port, "pump-7", username="pump-7", password=b"open sesame", properties=kept
        )
        found = await refusal(harness, "pump-7", username="pump-7", password=token())
        assert found.reason_code is ConnackReasonCode.NOT_AUTHORIZED
        await Client.connect(harness.port, "id:pump-7", username="x", password=token())
        session = harness.gateway.sessions.get("default", "id:pump-7")
        assert session.principal == "id:pump-7"
        await mine.expect_answered()


@pytest.mark.parametrize("prefix", ["a/", "+", "#", "a b", "x" * 33])
def test_a_prefix_is_part_of_a_name(prefix: str) -> None:
    tokens = {**TOKENS, **FILE, "username_prefix": prefix}
    with pytest.raises(SettingsError, match="username_prefix"):
        load(GatewaySettings, authenticators={"tokens": tokens}, authenticate_by=["tokens"])


URL: dict[str, Any] = {"jwks_url": "https://id.example.org/keys", "issuer": "a", "audience": "b"}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"algorithms": ["HS256"]}, "no key given, expected one of secret_file, public_key_file"),
        ({"algorithms": ["HS256"], **FILE, **URL}, "secret_file and jwks_url given"),
        ({"algorithms": [], **FILE}, "algorithms"),
        ({"algorithms": ["none"], **FILE}, "algorithms"),
        ({"algorithms": ["RS256"], **FILE}, "expected with secret_file: HS256, HS384, HS512"),
        ({"algorithms": ["HS256", "RS256"], **FILE}, "expected with secret_file: HS256"),
        ({"algorithms": ["HS256"], **URL}, "expected with jwks_url: RS…, PS…, ES…"),
        ({"algorithms": ["HS256", "ES256"], **URL}, "expected with jwks_url: RS…, PS…, ES…"),
        ({"algorithms": ["RS256"], **URL, "issuer": None}, "issuer and audience are needed"),
        ({"algorithms": ["RS256"], **URL, "audience": None}, "issuer and audience are needed"),
        (
            {"algorithms": ["RS256"], **URL, "jwks_url": "http://id.example.org/keys"},
            "anybody on the way could give keys of his own, expected https",
        ),
        ({"algorithms": ["HS256"], **FILE, "roles_claim": "r"}, "rights_file is not set"),
        ({"algorithms": ["HS256"], **FILE, "rights_claim": "r"}, "rights_file is not set"),
        ({"algorithms": ["HS256"], **FILE, "kind": "jwtt"}, "kind"),
    ],
)
def test_settings_that_cannot_be_meant(settings: dict[str, Any], reason: str) -> None:
    one = {"kind": "jwt", **settings}
    with pytest.raises(SettingsError) as failure:
        load(GatewaySettings, authenticators={"tokens": one}, authenticate_by=["tokens"])
    assert reason in str(failure.value)
