import pytest

from ingest.gateway.authentication.failures import MAX_ADDRESSES, FailedLogins
from mqlake.clock import ManualClock


def fail(failures: FailedLogins, address: str, times: int) -> None:
    for _ in range(times):
        failures.note(address)


def test_address_waits_once_it_has_failed_too_often() -> None:
    failures = FailedLogins(3, ManualClock())
    fail(failures, "192.0.2.1", 2)
    assert not failures.are_too_many("192.0.2.1")
    fail(failures, "192.0.2.1", 1)
    assert failures.are_too_many("192.0.2.1")
    assert not failures.are_too_many("192.0.2.2")


def test_one_attempt_is_free_again_after_its_share_of_a_minute() -> None:
    clock = ManualClock()
    failures = FailedLogins(60, clock)
    fail(failures, "192.0.2.1", 200)
    clock.advance(0.9)
    assert failures.are_too_many("192.0.2.1")
    clock.advance(0.1)
    assert not failures.are_too_many("192.0.2.1")
    fail(failures, "192.0.2.1", 1)
    assert failures.are_too_many("192.0.2.1")
    clock.advance(60)
    fail(failures, "192.0.2.1", 59)
    assert not failures.are_too_many("192.0.2.1")


@pytest.mark.parametrize(
    ("one", "other", "are_one"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("host:name", "host:name", True),
    ],
)
def test_addresses_of_one_customer_count_as_one(one: str, other: str, are_one: bool) -> None:
    failures = FailedLogins(1, ManualClock())
    failures.note(one)
    assert failures.are_too_many(other) is are_one


def test_zero_is_no_limit_and_no_address_has_none() -> None:
    unlimited = FailedLogins(0, ManualClock())
    fail(unlimited, "192.0.2.1", 1000)
    assert not unlimited.are_too_many("192.0.2.1")
    failures = FailedLogins(1, ManualClock())
    fail(failures, "", 1000)
    fail(failures, "192.0.2.1", 1)
    assert not failures.are_too_many("")


def test_memory_is_bounded_and_the_oldest_is_forgotten() -> None:
    failures = FailedLogins(1, ManualClock())
    fail(failures, "first", 1)
    for number in range(MAX_ADDRESSES - 1):
        failures.note(f"address-{number}")
    assert failures.are_too_many("first")
    failures.note("last")
    assert len(failures) == MAX_ADDRESSES
    assert not failures.are_too_many("first")
    assert failures.are_too_many("last")
