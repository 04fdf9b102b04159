"""Who does not show who he is stays out, whatever he sends; the healthy client notices nothing."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ingest.protocol.packets import (
    Auth,
    Connack,
    Connect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
    Unsubscribe,
)
from ingest.protocol.reason_codes import AuthReasonCode, ConnackReasonCode
from tests.ingest.gateway.harness import Client, until
from tests.ingest.hostile.town import PASSWORD, Town, refused, town

pytestmark = pytest.mark.anyio

BAD = ConnackReasonCode.BAD_USER_NAME_OR_PASSWORD
NOT_AUTHORIZED = ConnackReasonCode.NOT_AUTHORIZED
each_version = pytest.mark.parametrize("level", [3, 4, 5], ids=["3.1", "3.1.1", "5.0"])


@pytest.fixture(scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Town]:
    async with town(tmp_path_factory.mktemp("town")) as found:
        yield found


NOBODYS: dict[str, tuple[str | None, bytes | None]] = {
    "no password": ("ann", None),
    "an empty one": ("ann", b""),
    "a wrong one": ("ann", b"guess"),
    "the beginning": ("ann", PASSWORD[:-1]),
    "one letter more": ("ann", PASSWORD + b"x"),
    "U+0000 behind it": ("ann", PASSWORD + b"\0"),
    "a line end behind it": ("ann", PASSWORD + b"\n"),
    "a space before it": ("ann", b" " + PASSWORD),
    "upper case": ("ann", PASSWORD.upper()),
    "no UTF-8": ("ann", b"\xff\xfe" + PASSWORD),
    "a wildcard": ("ann", b"*"),
    "SQL": ("ann", b"' OR '1'='1"),
    "LDAP": ("ann", b"*)(uid=*"),
    "JSON": ("ann", b'{"$ne": null}'),
    "a token of nobody": ("ann", b"eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4ifQ."),
    "a form of argon2id": ("ann", b"$argon2id$v=19$m=19456,t=2,p=1$c2FsdA$aGFzaA"),
    "the longest": ("ann", b"x" * 65_000),
    "another's": ("bob", b"not " + PASSWORD),
    "a user who is not there": ("eve", PASSWORD),
    "a user in capitals": ("ANN", PASSWORD),
    "a space behind the user": ("ann ", PASSWORD),
    "a space before the user": (" ann", PASSWORD),
    "a letter that looks alike": ("\u0430nn", PASSWORD),
    "a wildcard as the user": ("*", PASSWORD),
    "SQL as the user": ("ann' --", PASSWORD),
    "LDAP as the user": ("*)(uid=*))(|(uid=*", PASSWORD),
    "a path": ("../ann", PASSWORD),
    "a line of the file": ("ann:$argon2id$", PASSWORD),
    "a tenant before the user": ("acme/ann", PASSWORD),
    "the own tenant before the user": ("default/ann", PASSWORD),
    "a name of the system": ("api-token", PASSWORD),
    "a rule": ("rule:heat", PASSWORD),
    "an empty user": ("", PASSWORD),
    "the longest user": ("x" * 65_000, PASSWORD),
    "no user and no password": (None, None),
}


@each_version
@pytest.mark.parametrize("name", NOBODYS)
async def test_nobody_comes_in_without_the_password(place: Town, name: str, level: int) -> None:
    username, password = NOBODYS[name]
    connect = Connect("hostile", level, username=username, password=password)
    await refused(place.port, connect, BAD, NOT_AUTHORIZED)
    assert not place.harness.gateway.sessions.is_connected("default", "hostile")
    await place.is_well()


@each_version
@pytest.mark.parametrize("username", ["ann\u200b", "\uff41nn", "a\u00adnn"])
async def test_a_name_in_other_letters_is_the_same_user(
    place: Town, username: str, level: int
) -> None:
    """RFC 4013: letters that nobody sees go, and forms are one. Rights and bans know the user."""
    client = await Client.connect(
        place.port, "other-letters", level=level, username=username, password=PASSWORD
    )
    assert place.harness.connection("other-letters").principal == "ann"
    await client.disconnect()
    await until(lambda: not place.harness.gateway.sessions.is_connected("default", "other-letters"))
    await place.is_well()


async def test_5_0_may_have_a_password_without_a_user_and_gets_nothing_by_it(place: Town) -> None:
    connect = Connect("hostile", 5, username=None, password=PASSWORD)
    await refused(place.port, connect, BAD, NOT_AUTHORIZED)
    await place.is_well()


@pytest.mark.parametrize("name", [*NOBODYS][:12])
async def test_who_is_not_let_in_takes_no_session_over(place: Town, name: str) -> None:
    username, password = NOBODYS[name]
    connect = Connect("healthy", 5, username=username, password=password)
    await refused(place.port, connect, BAD, NOT_AUTHORIZED)
    await place.is_well()


FIRST: dict[str, Packet] = {
    "PUBLISH": Publish("healthy/round", b"forged"),
    "PUBLISH QoS 1": Publish("healthy/round", b"forged", 1, packet_id=1),
    "PUBACK": Puback(1),
    "PUBREC": Pubrec(1),
    "PUBREL": Pubrel(1),
    "PUBCOMP": Pubcomp(1),
    "SUBSCRIBE": Subscribe(1, [Subscription("#", 2)]),
    "UNSUBSCRIBE": Unsubscribe(1, ["healthy/#"]),
    "PINGREQ": Pingreq(),
}


@each_version
@pytest.mark.parametrize("name", FIRST)
async def test_nothing_is_done_before_connect(place: Town, name: str, level: int) -> None:
    client = await Client.open(place.port, level)
    client.send(FIRST[name])
    assert await client.is_closed()
    await place.is_well()


@each_version
@pytest.mark.parametrize("name", FIRST)
async def test_nothing_is_done_behind_a_connect_that_is_refused(
    place: Town, name: str, level: int
) -> None:
    client = await Client.open(place.port, level)
    client.send(Connect("hostile", level, username="ann", password=b"x"), *[FIRST[name]] * 3)
    assert (await client.expect(Connack)).reason_code != 0
    assert await client.is_closed()
    await place.is_well()


METHODS: dict[str, Any] = {
    "unknown": ("GS2-KRB5", b"ticket"),
    "empty": ("", b""),
    "plain": ("PLAIN", b"\0ann\0open sesame"),
    "external": ("EXTERNAL", b"ann"),
    "another case": ("scram-sha-256", b"n,,n=ann,r=abc"),
    "a weaker one": ("SCRAM-SHA-1", b"n,,n=ann,r=abc"),
    "without a word": ("SCRAM-SHA-256", None),
    "no message of SCRAM": ("SCRAM-SHA-256", b"\0\xff"),
    "an empty nonce": ("SCRAM-SHA-256", b"n,,n=ann,r="),
    "no nonce": ("SCRAM-SHA-256", b"n,,n=ann"),
    "a mandatory extension": ("SCRAM-SHA-256", b"n,,m=x,n=ann,r=abc"),
    "channel binding": ("SCRAM-SHA-256", b"p=tls-unique,,n=ann,r=abc"),
    "an escape that is none": ("SCRAM-SHA-256", b"n,,n=a=5fnn,r=abc"),
    "acting for another": ("SCRAM-SHA-256", b"n,a=healthy,n=ann,r=abc"),
    "a long message": ("SCRAM-SHA-256", b"n,,n=ann,r=" + b"x" * 60_000),
}


@pytest.mark.parametrize("name", METHODS)
async def test_no_method_leads_past_the_password(place: Town, name: str) -> None:
    method, data = METHODS[name]
    properties: Any = {"authentication_method": method}
    if data is not None:
        properties["authentication_data"] = data
    client = await Client.open(place.port)
    client.send(Connect("hostile", 5, properties=properties))
    answer = await client.receive()
    if isinstance(answer, Auth):  # a challenge; to answer it needs the password
        final = b"c=biws,r=abc,p=" + b"A" * 43 + b"="
        proof: Any = {"authentication_method": method, "authentication_data": final}
        client.send(Auth(AuthReasonCode.CONTINUE_AUTHENTICATION, proof))
        answer = await client.receive()
    assert isinstance(answer, Connack), answer
    assert answer.reason_code >= 0x80
    assert await client.is_closed()
    await place.is_well()
