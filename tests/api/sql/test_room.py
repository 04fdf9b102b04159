"""Results on disk have a bound for each caller, each tenant and for all."""

import threading
from contextlib import ExitStack

import pytest

from api.sql.room import LEAST_BYTES, NoRoomError, ResultRoom

MOST = 10 * LEAST_BYTES


def is_whole(room: ResultRoom) -> bool:
    """Tell whether there is room for as many of the largest as there can be."""
    with ExitStack() as stack:
        for tenant in ("acme", "beta"):
            for caller in ("ann", "bob"):
                stack.enter_context(room.share(tenant, f"{caller} of {tenant}")).grow(MOST)
    return True


def test_a_caller_has_room_for_one_of_the_largest() -> None:
    room = ResultRoom(MOST)
    with room.share("acme", "ann") as first:
        first.grow(MOST - LEAST_BYTES)
        said = f"your results .* more than {MOST} bytes"
        with room.share("acme", "ann") as second, pytest.raises(NoRoomError, match=said):
            second.grow(LEAST_BYTES + 1)
        with room.share("acme", "bob") as other:
            other.grow(MOST)


def test_a_tenant_has_room_for_two_and_all_for_four() -> None:
    room = ResultRoom(MOST)
    with ExitStack() as stack:
        for caller in ("ann", "bob"):
            stack.enter_context(room.share("acme", caller)).grow(MOST)
        with (
            pytest.raises(NoRoomError, match="the tenant's results"),
            room.share("acme", "eve"),
        ):
            pass
        for caller in ("ann", "bob"):
            # Names of accounts are of all tenants: these are others.
            stack.enter_context(room.share("beta", f"{caller} of beta")).grow(MOST)
        with pytest.raises(NoRoomError, match="all results"), room.share("gamma", "eve"):
            pass
    with room.share("gamma", "eve") as share:
        share.grow(MOST)
    assert is_whole(room)


def test_room_comes_back_and_what_comes_too_late_takes_none() -> None:
    room = ResultRoom(MOST)
    for _ in range(50):
        with room.share("acme", "ann") as share:
            share.grow(MOST)
            share.grow(MOST // 2)
        share.grow(MOST)
    assert is_whole(room)


def test_two_threads_that_look_at_once_take_it_once() -> None:
    room = ResultRoom(MOST)
    with room.share("acme", "ann") as share:
        threads = [threading.Thread(target=share.grow, args=(MOST,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with room.share("acme", "bob") as other:
            other.grow(MOST)
            with pytest.raises(NoRoomError, match="the tenant's"), room.share("acme", "eve"):
                pass
    assert is_whole(room)


def test_the_system_itself_has_its_part_of_the_whole() -> None:
    room = ResultRoom(MOST)
    with room.share("default", "") as share:
        share.grow(MOST)
        with room.share("default", "") as other:
            other.grow(MOST)
