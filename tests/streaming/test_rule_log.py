"""What the log of rules reads; the rest of it is tested with the log itself."""

import pytest

from mqlake.records import METRICS, RULES
from streaming.rules.log import KafkaRuleLog


@pytest.mark.parametrize(("has_metrics", "followed"), [(True, {RULES, METRICS}), (False, {RULES})])
def test_metrics_are_read_by_those_alone_who_need_them(
    followed: set[str], *, has_metrics: bool
) -> None:
    log = KafkaRuleLog("127.0.0.1:1", {}, has_metrics=has_metrics)
    try:
        assert log.followed() == followed
    finally:
        log.close()
