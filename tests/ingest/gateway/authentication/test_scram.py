"""The server of SCRAM-SHA-256 against the RFC's example and another implementation's client."""

import base64
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scramp import ScramClient, ScramException

from ingest.gateway.authentication.outcomes import Accepted, Challenge, Refused
from ingest.gateway.authentication.scram import MAX_MESSAGE_BYTES, ScramServer
from ingest.protocol.reason_codes import ConnackReasonCode
from mqlake.security.credentials import Credentials, make_verifier
from mqlake.security.saslprep import prepare

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="

VERIFIERS = {
    prepare(name, "user name"): make_verifier(password, iterations=4096, salt=SALT)
    for name, password in {
        "user": "pencil",
        "a=b,c": "a=b,c",
        "Ren\u00e9": "\u2168\u00a0pass",
    }.items()
}
CREDENTIALS = Credentials(VERIFIERS, b"secret")


def new_client(username: str, password: str) -> Any:
    return ScramClient(["SCRAM-SHA-256"], username, password)


def login(username: str, password: str) -> Accepted | Challenge | Refused:
    """Log in with the other implementation; it checks what it is answered."""
    client, server = new_client(username, password), ScramServer(CREDENTIALS)
    challenge = server.start(client.get_client_first().encode())
    assert isinstance(challenge, Challenge)
    assert challenge.data is not None
    client.set_server_first(challenge.data.decode())
    outcome = server.step(client.get_client_final().encode())
    if isinstance(outcome, Accepted):
        assert outcome.data is not None
        client.set_server_final(outcome.data.decode())
    return outcome


def begun() -> ScramServer:
    server = ScramServer(CREDENTIALS, nonce=NONCE)
    assert server.start(CLIENT_FIRST) == Challenge(SERVER_FIRST)
    return server


def test_exchange_of_the_rfc() -> None:
    assert begun().step(CLIENT_FINAL) == Accepted("user", SERVER_FINAL)


def test_client_that_sends_nothing_first_is_asked() -> None:
    for nothing in (None, b""):
        server = ScramServer(CREDENTIALS, nonce=NONCE)
        assert server.start(nothing) == Challenge(None)
        assert server.step(CLIENT_FIRST) == Challenge(SERVER_FIRST)
        assert server.step(CLIENT_FINAL) == Accepted("user", SERVER_FINAL)


@pytest.mark.parametrize(
    ("username", "password", "known_as"),
    [
        ("user", "pencil", "user"),
        ("a=b,c", "a=b,c", "a=b,c"),
        ("Rene\u0301", "IX pass", "Ren\u00e9"),
        ("Ren\u00e9", "\u2168\u00a0pass", "Ren\u00e9"),
    ],
)
def test_another_implementation_logs_in(username: str, password: str, known_as: str) -> None:
    outcome = login(username, password)
    assert isinstance(outcome, Accepted)
    assert outcome.username == known_as


def test_unknown_user_learns_no_more_than_a_wrong_password() -> None:
    unknown = login("nobody", "pencil")
    assert unknown == login("user", "pen")
    assert unknown == Refused(ConnackReasonCode.NOT_AUTHORIZED, "unknown user or wrong password")


def test_every_exchange_has_a_nonce_of_its_own() -> None:
    outcomes = [ScramServer(CREDENTIALS).start(CLIENT_FIRST) for _ in range(50)]
    nonces = {
        outcome.data.partition(b",")[0]
        for outcome in outcomes
        if isinstance(outcome, Challenge) and outcome.data
    }
    assert len(nonces) == 50
    assert all(nonce.startswith(b"r=rOprNGfwEbeRWgbNEkqO") for nonce in nonces)


def test_overheard_exchange_cannot_be_played_again() -> None:
    server = ScramServer(CREDENTIALS)
    assert isinstance(server.start(CLIENT_FIRST), Challenge)
    assert server.step(CLIENT_FINAL) == Refused(
        ConnackReasonCode.NOT_AUTHORIZED, "a nonce of another exchange"
    )


def test_server_proves_itself_to_the_client() -> None:
    impostors = Credentials({"user": make_verifier("other", iterations=4096, salt=SALT)}, b"")
    client, server = new_client("user", "pencil"), ScramServer(impostors)
    challenge = server.start(client.get_client_first().encode())
    assert isinstance(challenge, Challenge)
    assert challenge.data is not None
    client.set_server_first(challenge.data.decode())
    client.get_client_final()
    with pytest.raises(ScramException):
        client.set_server_final(SERVER_FINAL.decode())


def test_exchange_ends_with_its_first_verdict() -> None:
    server = begun()
    assert isinstance(server.step(CLIENT_FINAL), Accepted)
    assert server.step(CLIENT_FINAL) == Refused(
        ConnackReasonCode.NOT_AUTHORIZED, "the exchange is over"
    )
    server = begun()
    assert isinstance(server.step(b""), Refused)
    assert isinstance(server.step(CLIENT_FINAL), Refused)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"\xff", "no client-first message"),
        (b"n=user,r=abc", "no client-first message"),
        (b"n,,n=user", "no client-first message"),
        (b"n,,n=user,r=", "no client-first message"),
        (b"n,,n=,r=abc", "no client-first message"),
        (b"n,,r=abc,n=user", "no client-first message"),
        (b"n,,m=x,n=user,r=abc", "no client-first message"),
        (b"n,,n=user,r=abc,m=x", "no client-first message"),
        (b"n,,n=user,r=ab\x7fc", "no client-first message"),
        (b"n,,n=us\x00er,r=abc", "no client-first message"),
        (b"n,,n=user,r=" + b"a" * MAX_MESSAGE_BYTES, "no client-first message"),
        (b"p=tls-unique,,n=user,r=abc", "channel binding asked for"),
        (b"x,,n=user,r=abc", "channel binding asked for"),
        (b"n,a=admin,n=user,r=abc", "wants to act as another user"),
        (b"n,,n=us=er,r=abc", "no user name can be read"),
        (b"n,,n=us=2cer,r=abc", "no user name can be read"),
        (b"n,,n=us\x07er,r=abc", "no user name can be read"),
    ],
)
def test_bad_first_message_is_refused(message: bytes, reason: str) -> None:
    outcome = ScramServer(CREDENTIALS).start(message)
    assert outcome == Refused(ConnackReasonCode.NOT_AUTHORIZED, reason)


@pytest.mark.parametrize(
    "message", [b"y,,n=user,r=abc", b"n,a=user,n=user,r=abc", b"n,,n=user,r=abc,x=1,y=2"]
)
def test_what_the_rfc_allows_is_taken(message: bytes) -> None:
    assert isinstance(ScramServer(CREDENTIALS).start(message), Challenge)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"c=biws", b"c=eSws", "channel binding data does not fit"),
        (b"c=biws,", b"", "no client-final message"),
        (b"k0,", b"k1,", "a nonce of another exchange"),
        (b"r=rOpr", b"r=sOpr", "a nonce of another exchange"),
        (b"k0,", b"k0,m=1,", "no client-final message"),
        (b",p=", b",x=1,p=", "unknown user or wrong password"),
        (b"p=dHzb", b"p=dHzc", "unknown user or wrong password"),
        (b"p=dHzb", b"p=", "a proof that is none"),
        (b"dVQ=", b"dVQ", "a proof that is none"),
        (b"dVQ=", b"dV Q", "no client-final message"),
        (b"dVQ=", b"dVQ=,x=1", "no client-final message"),
        (b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b"", "no client-final message"),
    ],
)
def test_bad_final_message_is_refused(old: bytes, new: bytes, reason: str) -> None:
    assert old in CLIENT_FINAL
    outcome = begun().step(CLIENT_FINAL.replace(old, new))
    assert outcome == Refused(ConnackReasonCode.NOT_AUTHORIZED, reason)


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=4))
@example([b"n,,n=\xe2\x85\xa8,r=a", b"c=biws,r=a,p=AA=="])
def test_no_bytes_make_it_fail_or_let_anybody_in(messages: list[bytes]) -> None:
    server = ScramServer(CREDENTIALS)
    outcomes = [server.start(messages[0]), *map(server.step, messages[1:])]
    assert not any(isinstance(outcome, Accepted) for outcome in outcomes)


@given(st.integers(0, len(CLIENT_FINAL) - 1), st.integers(1, 255))
def test_no_change_of_one_byte_is_let_in(position: int, change: int) -> None:
    mutated = bytearray(CLIENT_FINAL)
    mutated[position] ^= change
    outcome = begun().step(bytes(mutated))
    # The last character of the base64 has two bits that mean nothing.
    assert isinstance(outcome, Refused) or position == len(CLIENT_FINAL) - 2
