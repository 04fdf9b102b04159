from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingest.session.holder import Grant, Holder
from mqlake.shard_records import Key, Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqlake.errors import LogError
    from mqlake.records import Headers

ME, KEY = Run("g1", "i1"), ("t", "c")


class Host:
    """Writes down what a holder decides; appends stand where they come."""

    def __init__(self) -> None:
        self.did: list[tuple[Any, ...]] = []
        self.appended: list[tuple[bytes, bytes | None, Headers]] = []

    def append(
        self,
        shard: int,
        key: bytes,
        value: bytes | None,
        headers: Headers,
        on_appended: Callable[[int, LogError | None], None],
    ) -> None:
        self.appended.append((key, value, headers))
        on_appended(len(self.appended) - 1, None)

    def begin(self, key: Key, opening: str, grant: Grant | None) -> None:
        self.did.append(("begin", opening))

    def refuse(self, key: Key, opening: str, reason: str, *, is_superseded: bool) -> None:
        self.did.append(("refuse", opening))

    def let_go(self, key: Key) -> None:
        self.did.append(("let go",))

    def rewrite(self, key: Key) -> None:
        self.did.append(("rewrite",))

    def abandon(self, key: Key) -> None:
        self.did.append(("abandon",))

    def confirmed(self) -> None:
        self.did.append(("confirmed",))


def told(number: int, epoch: int = 0) -> dict[str, Any]:
    return {
        "tenant": KEY[0],
        "client_id": KEY[1],
        "incarnation": ME.incarnation,
        "number": number,
        "epoch": epoch,
    }


def test_a_grant_from_before_the_gateway_was_deaf_counts_no_more() -> None:
    host = Host()
    holder: Holder[str] = Holder(ME, 1, host)
    holder.open(KEY, "client", 0.0, clean_start=False)
    holder.confirm(20.0)
    holder.granted(told(1, 0))
    assert not holder.is_held(KEY)
    holder.granted(told(2, 2))
    assert host.did == [("confirmed",), ("begin", "client")]


def test_a_session_begun_before_its_claim_was_read_may_be_refused() -> None:
    host = Host()
    holder: Holder[str] = Holder(ME, 1, host)
    number = holder.next_number
    holder.open_free(KEY, "client")
    holder.refused(told(number))
    assert host.did == [("begin", "client"), ("abandon",)]
    assert not holder.is_held(KEY)


def test_a_grant_takes_the_place_of_a_session_begun_before_its_claim_was_read() -> None:
    host = Host()
    holder: Holder[str] = Holder(ME, 1, host)
    holder.open_free(KEY, "one")
    holder.open(KEY, "two", 0.0, clean_start=True)
    holder.granted(told(2, 1))
    assert host.did == [("begin", "one"), ("abandon",), ("begin", "two")]
    assert holder.epoch(KEY) == 1
