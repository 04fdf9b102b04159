"""What the log of rules reads; the rest of it is tested with the log itself."""

import pytest

from mqlake.records.messages import ACCESS, GATEWAYS, METRICS, RULES
from streaming.rules.log import KafkaRuleLog


@pytest.mark.parametrize(
    ("is_controllers", "followed"), [(True, {RULES, ACCESS, METRICS, GATEWAYS}), (False, {RULES})]
)
def test_metrics_rights_and_limits_are_read_by_those_alone_who_need_them(
    followed: set[str], *, is_controllers: bool
) -> None:
    log = KafkaRuleLog("127.0.0.1:1", is_controllers=is_controllers)
    try:
        assert log.followed() == followed
    finally:
        log.close()
