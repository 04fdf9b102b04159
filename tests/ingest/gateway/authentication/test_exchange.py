from pathlib import Path
from typing import Any

import pytest
from scramp import ScramClient

from ingest.gateway.authentication.authenticator import Authenticator
from ingest.gateway.authentication.exchange import EnhancedAuthentication
from ingest.gateway.authentication.outcomes import (
    TOO_MANY_FAILURES,
    Accepted,
    Challenge,
    Outcome,
    Refused,
)
from ingest.protocol.errors import ProtocolViolation
from ingest.protocol.packets import Auth
from ingest.protocol.reason_codes import AuthReasonCode, ConnackReasonCode
from mqlake.clock import ManualClock
from mqlake.security.credentials import make_verifier, set_user

METHOD = "SCRAM-SHA-256"
CONTINUE = AuthReasonCode.CONTINUE_AUTHENTICATION
AGAIN = AuthReasonCode.RE_AUTHENTICATE
ADDRESS = "192.0.2.1"


@pytest.fixture
def authenticator(tmp_path: Path) -> Authenticator:
    path = tmp_path / "credentials"
    for name in ("alice", "bob"):
        set_user(path, name, make_verifier(name + "'s", iterations=4096))
    return Authenticator(
        path, allow_anonymous=None, failed_logins_per_minute=3, clock=ManualClock()
    )


def auth(reason_code: AuthReasonCode, data: bytes | None = None, method: str = METHOD) -> Auth:
    packet = Auth(reason_code, {"authentication_method": method})
    if data is not None:
        packet.properties["authentication_data"] = data
    return packet


def new_client(username: str, password: str = "") -> Any:
    return ScramClient([METHOD], username, password or username + "'s")


def final_of(client: Any, challenge: Outcome) -> bytes:
    assert isinstance(challenge, Challenge)
    assert challenge.data is not None
    client.set_server_first(challenge.data.decode())
    final: str = client.get_client_final()
    return final.encode()


def log_in(
    enhanced: EnhancedAuthentication, username: str, password: str = "", *, again: bool = False
) -> Outcome:
    client = new_client(username, password)
    first = client.get_client_first().encode()
    challenge = enhanced.process_auth(auth(AGAIN, first)) if again else enhanced.begin(first)
    return enhanced.process_auth(auth(CONTINUE, final_of(client, challenge)))


def test_client_logs_in_and_again(authenticator: Authenticator) -> None:
    enhanced = EnhancedAuthentication(authenticator, METHOD, None, ADDRESS)
    for again in (False, True, True):
        outcome = log_in(enhanced, "alice", again=again)
        assert isinstance(outcome, Accepted)
        assert outcome.username == "alice"


def test_data_may_come_in_auth_packets_alone(authenticator: Authenticator) -> None:
    enhanced = EnhancedAuthentication(authenticator, METHOD, "alice", ADDRESS)
    assert enhanced.begin(None) == Challenge(None)
    client = new_client("alice")
    challenge = enhanced.process_auth(auth(CONTINUE, client.get_client_first().encode()))
    outcome = enhanced.process_auth(auth(CONTINUE, final_of(client, challenge)))
    assert isinstance(outcome, Accepted)


def test_user_is_the_one_of_connect(authenticator: Authenticator) -> None:
    refused = Refused(ConnackReasonCode.NOT_AUTHORIZED, "logs in as another user")
    for username in ("bob", "", "a\tb"):
        enhanced = EnhancedAuthentication(authenticator, METHOD, username, ADDRESS)
        assert log_in(enhanced, "alice") == refused
    enhanced = EnhancedAuthentication(authenticator, METHOD, "\u00adalice", ADDRESS)
    assert isinstance(log_in(enhanced, "alice"), Accepted)


def test_user_stays_the_same_when_it_logs_in_again(authenticator: Authenticator) -> None:
    enhanced = EnhancedAuthentication(authenticator, METHOD, None, ADDRESS)
    log_in(enhanced, "alice")
    assert log_in(enhanced, "bob", again=True) == Refused(
        ConnackReasonCode.NOT_AUTHORIZED, "logs in as another user"
    )


def test_failures_are_counted(authenticator: Authenticator) -> None:
    for _ in range(3):
        enhanced = EnhancedAuthentication(authenticator, METHOD, None, ADDRESS)
        assert isinstance(log_in(enhanced, "alice", "wrong"), Refused)
    outcome = EnhancedAuthentication(authenticator, METHOD, None, ADDRESS).begin(None)
    assert isinstance(outcome, Refused)
    assert outcome.reason_code is ConnackReasonCode.CONNECTION_RATE_EXCEEDED


def test_method_that_is_not_there_is_refused(authenticator: Authenticator) -> None:
    outcome = EnhancedAuthentication(authenticator, "GSSAPI", None, ADDRESS).begin(b"x")
    assert isinstance(outcome, Refused)
    assert outcome.reason_code is ConnackReasonCode.BAD_AUTHENTICATION_METHOD


@pytest.mark.clause("MQTT5-4.12.0-5")
@pytest.mark.clause("MQTT5-4.12.1-1")
@pytest.mark.parametrize("before", [True, False])
def test_method_stays_the_same(authenticator: Authenticator, before: bool) -> None:
    enhanced = EnhancedAuthentication(authenticator, METHOD, None, ADDRESS)
    if before:
        enhanced.begin(None)
    else:
        log_in(enhanced, "alice")
    with pytest.raises(ProtocolViolation, match="names the method 'SCRAM-SHA-512'") as error:
        enhanced.process_auth(auth(CONTINUE if before else AGAIN, b"x", "SCRAM-SHA-512"))
    assert error.value.reason_code == 0x8C
    assert error.value.clause == ("MQTT5-4.12.0-5" if before else "MQTT5-4.12.1-1")


@pytest.mark.clause("MQTT5-4.12.0-3")
def test_auth_that_nothing_waits_for_is_a_protocol_error(authenticator: Authenticator) -> None:
    first = new_client("alice").get_client_first().encode()
    connecting = EnhancedAuthentication(authenticator, METHOD, None, ADDRESS)
    connecting.begin(None)
    idle = EnhancedAuthentication(authenticator, METHOD, None, ADDRESS)
    log_in(idle, "alice")
    busy = EnhancedAuthentication(authenticator, METHOD, None, ADDRESS)
    log_in(busy, "alice")
    busy.process_auth(auth(AGAIN, first))
    for enhanced, packet, text in (
        (connecting, auth(AGAIN, first), "RE_AUTHENTICATE in an exchange"),
        (idle, auth(CONTINUE, first), "CONTINUE_AUTHENTICATION without an exchange"),
        (busy, auth(AGAIN, first), "RE_AUTHENTICATE in an exchange"),
    ):
        with pytest.raises(ProtocolViolation, match=text) as error:
            enhanced.process_auth(packet)
        assert error.value.reason_code == 0x82


def test_properties_carry_the_method_and_data_where_there_is_some(
    authenticator: Authenticator,
) -> None:
    enhanced = EnhancedAuthentication(authenticator, METHOD, None, ADDRESS)
    assert enhanced.properties(None) == {"authentication_method": METHOD}
    assert enhanced.properties(b"x") == {
        "authentication_method": METHOD,
        "authentication_data": b"x",
    }


@pytest.mark.promise
def test_proofs_of_exchanges_that_were_opened_at_once_are_no_more_than_one_by_one(
    authenticator: Authenticator,
) -> None:
    opened = []
    for number in range(10):
        enhanced = EnhancedAuthentication(authenticator, METHOD, None, ADDRESS)
        client = new_client("alice", "" if number > 2 else f"guess {number}")
        opened.append((enhanced, client, enhanced.begin(client.get_client_first().encode())))
    codes = []
    for enhanced, client, challenge in opened:
        outcome = enhanced.process_auth(auth(CONTINUE, final_of(client, challenge)))
        assert isinstance(outcome, Refused), "a right one does not come in any more"
        codes.append(outcome)
        with pytest.raises(ProtocolViolation):
            enhanced.process_auth(auth(CONTINUE, b"and again"))
    wrong = Refused(ConnackReasonCode.NOT_AUTHORIZED, "unknown user or wrong password")
    assert codes == [wrong] * 3 + [TOO_MANY_FAILURES] * 7
    enhanced = EnhancedAuthentication(authenticator, METHOD, None, ADDRESS)
    assert enhanced.begin(b"n,,n=alice,r=x") is TOO_MANY_FAILURES
    elsewhere = EnhancedAuthentication(authenticator, METHOD, None, "192.0.2.2")
    assert isinstance(log_in(elsewhere, "alice"), Accepted)


def test_logins_do_not_add_up(authenticator: Authenticator) -> None:
    for _ in range(10):
        enhanced = EnhancedAuthentication(authenticator, METHOD, None, ADDRESS)
        assert isinstance(log_in(enhanced, "alice"), Accepted)
