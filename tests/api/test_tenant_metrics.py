"""Metrics of tenants: an operator sees all, a tenant's key its own; their number is bounded."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from prometheus_client.parser import text_string_to_metric_families

from api.log.following import Followed
from api.metrics.tenants import TenantFigures, forget_tenant_metrics
from mqlake.metrics.names import MOST, OTHER, TENANTS
from mqlake.records.messages import METRICS
from mqlake.records.rules import RuleMetricsKey, rule_metrics_key
from mqlake.tenant_metrics import (
    COUNTED,
    TenantMetrics,
    TenantMetricsKey,
    encode_tenant_metrics,
    tenant_metrics_key,
)
from tests.api.conftest import Api
from tests.api.test_tenant_rights import key_for

Samples = dict[tuple[str, ...], float]


def samples(text: str) -> Samples:
    """Return values by name and values of labels, that of the tenant first."""
    return {
        (one.name, *(one.labels[label] for label in sorted(one.labels, reverse=True))): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def say(api: Api, gateway: str, tenant: str, value: int, incarnation: str = "1") -> None:
    counters = {name: value + place for place, name in enumerate(COUNTED)}
    record = encode_tenant_metrics(TenantMetrics(incarnation, value, counters))
    put(api, tenant_metrics_key(TenantMetricsKey(gateway, tenant)), record)


def put(api: Api, key: bytes, value: bytes | None) -> None:
    view = api.services.metrics.tenants
    refused = view.take([Followed(METRICS, 1, key, value)], is_old=False)
    refused += api.metrics.take([Followed(METRICS, 1, key, value)], is_old=False)
    assert len(refused) == (value == b"{")


@pytest.fixture
def furnished(api: Api, tmp_path: Path) -> Api:
    for gateway in ("gateway-1", "gateway-2"):
        api.hear(gateway)
    for number, tenant in enumerate(("acme", "beta"), 1):
        say(api, "gateway-1", tenant, 100 * number)
        say(api, "gateway-2", tenant, 1_000 * number)
        for rule in ("hot", f"{tenant}-cold"):
            counted = {"matched": 7 * number, "outputs": 5, "failed": 1}
            value = json.dumps(counted | {"evaluation_ns": 1_500_000_000}).encode()
            put(api, rule_metrics_key(RuleMetricsKey("engine", "1", tenant, rule)), value)
        api.put_session(f"of-{tenant}", tenant=tenant)
    rows = {"tenant": ["acme", "acme", "beta"]}
    write_deltalake(str(tmp_path / "tables" / "messages"), pa.table(rows))
    return api


def test_an_operator_is_told_of_all(furnished: Api) -> None:
    answer = furnished.request("GET", "/metrics/tenants")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    found = samples(answer.text)
    assert {name for name, *_ in found} == {metric.name for metric in TENANTS}
    assert found["mqlake_tenant_connections", "acme", "gateway-1"] == 100
    assert found["mqlake_tenant_connects_total", "beta", "gateway-2"] == 2_000
    assert found["mqlake_tenant_messages_received_total", "acme", "gateway-2"] == 1_001
    assert found["mqlake_tenant_messages_dropped_total", "beta", "gateway-1"] == 205
    assert found["mqlake_tenant_rule_evaluations_total", "beta"] == 28
    assert found["mqlake_tenant_rule_evaluation_seconds_total", "beta"] == 3.0
    assert found["mqlake_tenant_sessions", "acme"] == 1
    assert found["mqlake_tenant_stored_rows", "acme", "messages"] == 2
    assert found["mqlake_tenant_stored_bytes", "beta", "messages"] > 0


def test_a_tenants_key_is_told_of_its_own(furnished: Api) -> None:
    of_all = samples(furnished.request("GET", "/metrics/tenants").text)
    for tenant, other in (("acme", "beta"), ("beta", "acme")):
        key = key_for(furnished, tenant, role="viewer")
        answer = furnished.request("GET", "/metrics/tenants", key)
        assert answer.status_code == 200
        assert other not in answer.text
        own = {key: one for key, one in of_all.items() if key[1] == tenant}
        assert samples(answer.text) == own
    both = furnished.request("GET", "/metrics/tenants", key_for(furnished, "acme", "beta"))
    assert samples(both.text) == of_all
    nobody = furnished.request("GET", "/metrics/tenants", key_for(furnished, "gamma"))
    assert samples(nobody.text) == {}
    assert furnished.request("GET", "/metrics/tenants", headers={}).status_code == 401


def test_who_has_some_topics_alone_is_not_told(furnished: Api) -> None:
    body = {"role": "viewer", "description": "x", "topic_filters": ["#"]}
    key = furnished.request("POST", "/keys", json=body).json()["key"]
    asked = furnished.request("GET", "/metrics/tenants", {"Authorization": f"Bearer {key}"})
    assert asked.status_code == 403


def test_tenants_are_told_up_to_a_number(api: Api) -> None:
    api.hear("gateway-1")
    for number in range(MOST + 3):
        say(api, "gateway-1", f"t{number:04}", 1)
    found = samples(api.request("GET", "/metrics/tenants").text)
    shown = {key[1] for key in found if key[0] == "mqlake_tenant_connections"}
    assert len(shown) == MOST + 1
    assert found["mqlake_tenant_connections", OTHER, "gateway-1"] == 3
    last = f"t{MOST + 2:04}"
    own = samples(api.request("GET", "/metrics/tenants", key_for(api, last)).text)
    assert own["mqlake_tenant_connections", last, "gateway-1"] == 1, "a tenant has its own"


def test_gateways_that_are_gone_or_began_anew_do_not_count(furnished: Api) -> None:
    furnished.hear("gateway-1", incarnation="2")
    furnished.clock.advance(1_000)
    furnished.hear("gateway-1", incarnation="2")
    say(furnished, "gateway-1", "acme", 3, "2")
    put(furnished, tenant_metrics_key(TenantMetricsKey("gateway-1", "acme")), b"{")
    found = samples(furnished.request("GET", "/metrics/tenants").text)
    connections = {key[1:]: one for key, one in found.items() if "connections" in key[0]}
    assert connections == {("acme", "gateway-1"): 3}


def test_usage_has_the_same_in_sql(furnished: Api) -> None:
    figures: TenantFigures = furnished.services.metrics.figures
    found = {(kind, name): value for kind, name, value in figures.rows("beta")}
    assert found["rule_evaluations", "beta-cold"] == 14
    assert found["rule_evaluation_ms", "beta-cold"] == 1_500
    assert found["connections", "gateway-2"] == 2_000
    assert found["messages_received", "gateway-1"] == 201
    assert (found["stored_rows", "messages"], found["sessions", ""]) == (1, 1)
    assert found["stored_bytes", "messages"] > 0
    assert not any("acme" in name for _, name in found)
    assert list(figures.rows("nobody")) == [("sessions", "", 0)]


def test_a_deleted_tenant_is_forgotten(furnished: Api) -> None:
    tenants = furnished.services.metrics.tenants
    forget_tenant_metrics(furnished.log, tenants, "acme")
    gone = {one.key for one in furnished.log.records if one.log_topic == METRICS}
    assert gone == {b"tenants/gateway-1/acme", b"tenants/gateway-2/acme"}
    assert not tenants.keys("acme")
    assert len(tenants.keys("beta")) == 2
