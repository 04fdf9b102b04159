"""Who is banned, against an implementation that looks at every ban."""

from datetime import UTC, datetime
from fnmatch import fnmatchcase
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.bans import (
    Ban,
    BanList,
    BansError,
    KeptBan,
    ban_id_of,
    ban_key,
    decode_ban,
    encode_ban,
    parse_bans,
    read_bans,
)
from mqlake.errors import InvalidRecord

NOW = datetime(2030, 1, 1, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
NAMES = st.text("ab", min_size=1, max_size=3)
PATTERNS = st.one_of(NAMES, st.text("ab", max_size=2).map("{}*".format))
NETWORKS = st.one_of(
    st.tuples(st.integers(0, 15), st.integers(28, 32)).map(
        lambda pair: ip_network((0x0A000000 + pair[0], pair[1]), strict=False)
    ),
    st.tuples(st.integers(0, 7), st.integers(125, 128)).map(
        lambda pair: (
            ip_network((pair[0], pair[1]), strict=False).supernet(new_prefix=125)
            if pair[1] == 125
            else ip_network(f"::{pair[0]}/128")
        )
    ),
)
TIMES = st.sampled_from([None, datetime(2029, 1, 1, tzinfo=UTC), datetime(2031, 1, 1, tzinfo=UTC)])
ADDRESSES = st.one_of(
    st.integers(0, 15).map(lambda n: f"10.0.0.{n}"),
    st.integers(0, 15).map(lambda n: f"::ffff:10.0.0.{n}"),
    st.integers(0, 7).map(lambda n: f"::{n}"),
    st.just(""),
)


@st.composite
def bans(draw: st.DrawFn) -> Ban:
    fields: dict[str, Any] = {
        "client_ids": draw(st.lists(PATTERNS, max_size=2)),
        "users": draw(st.lists(NAMES, max_size=2)),
        "addresses": draw(st.lists(NETWORKS, max_size=2)),
        "until": draw(TIMES),
    }
    if not (fields["client_ids"] or fields["users"] or fields["addresses"]):
        fields["users"] = ["a"]
    return Ban.model_validate(fields)


def test_a_token_is_found_by_its_claim_alone_as_long_as_it_is_banned() -> None:
    over = Ban(tokens=("old",), until=NOW)
    found = BanList([Ban(tokens=("stolen", "lost")), over, Ban(users=("own",))])
    at = round(NOW.timestamp() * 1000)
    for token_id, is_banned in {"stolen": True, "lost": True, "own": False, "old": False}.items():
        assert (found.find("c", "u", "10.0.0.1", at, token_id) is not None) is is_banned
    assert found.find("stolen", "stolen", "", at) is None, "it is no name"


def test_gateways_of_before_read_what_names_no_token() -> None:
    kept = KeptBan(users=("a",), at=1, by="b")
    assert b"tokens" not in encode_ban(kept)
    assert decode_ban(encode_ban(kept)) == kept
    revoked = KeptBan(tokens=("a",), at=1, by="b")
    assert decode_ban(encode_ban(revoked)) == revoked


def is_of(ban: Ban, client_id: str, username: str | None, address: str) -> bool:
    """Tell it the dumb way."""
    if ban.until is not None and ban.until <= NOW:
        return False
    if client_id and any(fnmatchcase(client_id, pattern) for pattern in ban.client_ids):
        return True
    if username in ban.users:
        return True
    if not address:
        return False
    found = ip_address(address.removeprefix("::ffff:"))
    return any(found in network for network in ban.addresses)


@given(st.lists(bans(), max_size=5), st.text("ab", max_size=3), st.none() | NAMES, ADDRESSES)
def test_a_list_finds_what_looking_at_each_finds(
    some: list[Ban], client_id: str, username: str | None, address: str
) -> None:
    found = BanList(some).find(client_id, username, address, NOW_MS)
    expected = [ban for ban in some if is_of(ban, client_id, username, address)]
    assert found in expected if expected else found is None


def test_a_file_says_who_and_until_when(tmp_path: Path) -> None:
    path = tmp_path / "bans.toml"
    path.write_text(
        '[[bans]]\nclient_ids = ["evil-*"]\nreason = "floods"\nuntil = 2030-01-01T00:00:00Z\n'
        '[[bans]]\naddresses = ["203.0.113.0/24", "2001:db8::1"]\n'
    )
    found = BanList(read_bans(path))
    assert len(found) == 2
    ban = found.find("evil-7", None, "", NOW_MS - 1)
    assert ban is not None
    assert ban.reason == "floods"
    assert found.find("evil-7", None, "", NOW_MS) is None, "its time is over"
    assert found.find("x", None, "203.0.113.9", NOW_MS)
    assert found.find("x", None, "2001:db8::1%eth0", NOW_MS)
    assert found.find("x", None, "no address", NOW_MS) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[bans]]\n", "ban 1: expected client_ids, users, addresses or tokens"),
        ('[[bans]]\nusers = ["a"]\n[[bans]]\nusers = [""]', "ban 2: users"),
        ('[[bans]]\naddresses = ["10.0.0.1/8"]', "ban 1: addresses"),
        ('[[bans]]\nusers = ["a"]\nuntil = 2030-01-01T00:00:00', "ban 1: until"),
        ('[[bans]]\nuser = ["a"]', "ban 1: user"),
        ("bans = 1", "bans"),
        ("[[", "Invalid initial character"),
    ],
)
def test_what_is_no_ban_is_named(text: str, words: str) -> None:
    with pytest.raises(BansError, match=words):
        parse_bans(text)


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bans.toml"
    path.write_text("")
    path.chmod(0o622)
    with pytest.raises(BansError, match="chmod go-w"):
        read_bans(path)
    path.unlink()
    with pytest.raises(BansError, match=f"bans file {path}: No such file"):
        read_bans(path)


@given(bans())
def test_a_record_holds_a_ban(ban: Ban) -> None:
    kept = KeptBan(**ban.model_dump(), at=5, by="ann")
    assert decode_ban(encode_ban(kept)) == kept


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b'{"v": 99, "users": ["a"], "at": 1, "by": ""}',
        b'{"v": 2, "users": ["a"], "by": ""}',
        b'{"v": 2, "users": [], "at": 1, "by": ""}',
    ],
)
def test_what_is_no_record_of_a_ban_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode_ban(value)


def test_members_of_a_later_version_are_passed_over() -> None:
    value = b'{"v": 3, "users": ["a"], "at": 1, "by": "x", "more": 1}'
    assert decode_ban(value).users == ("a",)


def test_a_key_names_a_ban() -> None:
    assert ban_id_of(ban_key("x1")) == "x1"
    assert ban_id_of(b"gateway-1") is None
