"""Which rows of the history go, as conditions."""

from mqlake.tables.retention import KeepingPolicy
from streaming.tables.retention import DAY_MS, expired

NOW_MS = 1_700_000_000_000
DAY_BEGIN_MS = NOW_MS // DAY_MS * DAY_MS


def test_without_a_policy_nothing_goes() -> None:
    assert expired([], "messages", NOW_MS) is None
    assert expired([KeepingPolicy("drops", keep_days=1)], "messages", NOW_MS) is None


def test_rows_go_by_whole_days() -> None:
    everything = KeepingPolicy(keep_days=2)
    condition = f"((true) AND ts < timestamp_millis({DAY_BEGIN_MS - 2 * DAY_MS}))"
    assert expired([everything], "messages", NOW_MS) == condition
    assert expired([everything], "messages", DAY_BEGIN_MS + DAY_MS - 1) == condition
    assert expired([everything], "messages", DAY_BEGIN_MS + DAY_MS) != condition


def test_the_first_policy_that_fits_counts() -> None:
    found = expired(
        [KeepingPolicy(tenant="a'b", topic_filter="x/y", keep_days=1), KeepingPolicy(keep_days=2)],
        "messages",
        NOW_MS,
    )
    fits = r"tenant = 'a\'b' AND coalesce(topic = 'x/y', false)"
    assert found is not None
    assert found.startswith(f"(({fits}) AND ts <")
    assert f"((true) AND NOT ({fits}) AND ts <" in found


def test_the_beginning_of_a_filter_is_a_range() -> None:
    found = expired([KeepingPolicy(topic_filter="plant/+/temp", keep_days=1)], "messages", NOW_MS)
    assert found is not None
    assert "topic >= 'plant' AND topic < 'plant0' AND topic RLIKE" in found
