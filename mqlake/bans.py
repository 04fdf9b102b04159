"""Bans of client identifiers, users and addresses, for a time or for good.

A file of a gateway holds them, and for all gateways records of `mqlake.gateways` that the API
writes.
"""

import json
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from mqlake.errors import MqlakeError
from mqlake.records.messages import BAN_KEY_PREFIX
from mqlake.records.models import decode_model
from mqlake.records.versions import RECORD_VERSION
from mqlake.security.operator_files import parse_operator_file, read_operator_file

Network: TypeAlias = IPv4Network | IPv6Network
Address: TypeAlias = IPv4Address | IPv6Address

_Name = Annotated[str, Field(min_length=1)]
_ANY_END: Final = "*"


class BansError(MqlakeError):
    """A file of bans that cannot be used."""


class Ban(BaseModel):
    """An entry: for clients with one of its names or networks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    client_ids: tuple[_Name, ...] = ()
    """A `*` at the end stands for any end."""
    users: tuple[_Name, ...] = ()
    addresses: tuple[Network, ...] = ()
    tokens: tuple[_Name, ...] = ()
    """Claims jti of JSON Web Tokens that are revoked."""
    until: AwareDatetime | None = None
    reason: str = ""

    @model_validator(mode="after")
    def _is_for_somebody(self) -> Self:
        if not self._is_for_anybody:
            raise ValueError("expected client_ids, users, addresses or tokens")
        return self

    @property
    def _is_for_anybody(self) -> bool:
        return bool(self.client_ids or self.users or self.addresses or self.tokens)

    def is_over(self, now_ms: int) -> bool:
        return self.until is not None and self.until.timestamp() * 1000 <= now_ms


Offence: TypeAlias = Literal["", "guesses", "flaps"]


class BannedClient(BaseModel):
    """A client with one user: other users of its client identifier are not banned."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tenant: str
    user: str | None
    """None: it had not logged in."""
    client_id: str


class KeptBan(Ban):
    """A ban in `mqlake.gateways`."""

    clients: tuple[BannedClient, ...] = ()
    offence: Offence = ""
    """For which a gateway has made it, for a time; "": a caller of the API has made it."""

    at: int
    """When it was made, UTC epoch in milliseconds."""
    by: str
    """Its author: a caller of the API, or a gateway."""

    @property
    def _is_for_anybody(self) -> bool:
        return bool(self.clients) or super()._is_for_anybody


class BansFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    bans: tuple[Ban, ...] = ()


class BanList:
    """Bans, found without looking at each: one client after the other is looked for.

    Args:
        bans: Some of them may be over.
    """

    def __init__(self, bans: Sequence[Ban] = ()) -> None:
        self._bans = len(bans)
        self._client_ids: dict[str, list[Ban]] = {}
        self._beginnings: dict[int, dict[str, list[Ban]]] = {}
        self._users: dict[str, list[Ban]] = {}
        self._networks: dict[tuple[int, int], dict[int, list[Ban]]] = {}
        self._tokens: dict[str, list[Ban]] = {}
        for ban in bans:
            for name in ban.client_ids:
                if name.endswith(_ANY_END):
                    begin = name.removesuffix(_ANY_END)
                    found = self._beginnings.setdefault(len(begin), {})
                    found.setdefault(begin, []).append(ban)
                else:
                    self._client_ids.setdefault(name, []).append(ban)
            for name in ban.users:
                self._users.setdefault(name, []).append(ban)
            for name in ban.tokens:
                self._tokens.setdefault(name, []).append(ban)
            for network in ban.addresses:
                by_number = self._networks.setdefault((network.version, network.prefixlen), {})
                by_number.setdefault(int(network.network_address), []).append(ban)

    def __len__(self) -> int:
        return self._bans

    def find(
        self,
        client_id: str,
        username: str | None,
        address: str,
        now_ms: int,
        token_id: str | None = None,
    ) -> Ban | None:
        """Return a ban of a client that is not over; None: there is none.

        Args:
            client_id: "" before it has one.
            username: None: it has none.
            address: "" where there is none; an IPv4 address in an IPv6 one is an IPv4 address.
            now_ms: UTC epoch.
            token_id: Identifier of the token of its login; None: no token, or one without.
        """
        if not self._bans:
            return None
        if token_id is not None:
            for ban in self._tokens.get(token_id, ()):
                if not ban.is_over(now_ms):
                    return ban
        for ban in self._of(client_id, username, address):
            if not ban.is_over(now_ms):
                return ban
        return None

    def _of(self, client_id: str, username: str | None, address: str) -> Iterator[Ban]:
        if client_id:
            yield from self._client_ids.get(client_id, ())
            for length, by_begin in self._beginnings.items():
                yield from by_begin.get(client_id[:length], ())
        if username is not None:
            yield from self._users.get(username, ())
        if self._networks and (found := parse_address(address)) is not None:
            number, bits = int(found), found.max_prefixlen
            for (version, length), by_number in self._networks.items():
                if version == found.version:
                    yield from by_number.get(number >> (bits - length) << (bits - length), ())


def ban_key(ban_id: str) -> bytes:
    return BAN_KEY_PREFIX + ban_id.encode()


def ban_id_of(key: bytes) -> str | None:
    """Undo `ban_key`; None for the key of something else."""
    if not key.startswith(BAN_KEY_PREFIX):
        return None
    return key.removeprefix(BAN_KEY_PREFIX).decode(errors="replace")


def encode_ban(ban: KeptBan) -> bytes:
    members = ban.model_dump(mode="json")
    for later in ("tokens", "clients", "offence"):  # gateways of before know none
        if not members[later]:
            del members[later]
    return json.dumps({"v": RECORD_VERSION, **members}).encode()


def decode_ban(value: bytes) -> KeptBan:
    """Undo `encode_ban`.

    Raises:
        InvalidRecord: Not JSON, another version, or no ban.
    """
    return decode_model(KeptBan, value, "ban")


def parse_address(text: str) -> Address | None:
    """Return the address of a peer; None for none."""
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def read_bans(path: Path) -> tuple[Ban, ...]:
    """Return the bans of a file.

    Raises:
        BansError: It cannot be read, others may write it, or a ban is none; says which.
    """
    text = read_operator_file(path, "bans", BansError)
    try:
        return parse_bans(text)
    except BansError as exc:
        raise BansError(f"bans file {path}: {exc}") from exc


def parse_bans(text: str) -> tuple[Ban, ...]:
    """Return the bans in the text of a file.

    Raises:
        BansError: It is no TOML, or a ban is none; says which, counted from 1.
    """
    return parse_operator_file(text, BansFile, BansError, "bans").bans
