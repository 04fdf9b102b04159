"""The example in `docs/rights.md` is a file that works, and its table has every limit there is."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from api.routes.clients.rights import WantedRights
from ingest.gateway.settings.gateway import GatewaySettings
from ingest.gateway.settings.limits import LimitSettings
from ingest.gateway.settings.listeners import TcpListener
from mqlake.records.tenants import RATES, STOCKS, TenantLimits
from mqlake.rights.compiled import Rights
from mqlake.rights.files import parse_rights

DOCUMENT = Path(__file__).parents[2] / "docs" / "rights.md"


def test_the_example_does_as_its_comments_say() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    rights = Rights(parse_rights(text.split("```toml\n")[1].split("```")[0]))
    olga = rights.of("olga-1", "olga")
    assert olga.may_connect()
    assert olga.may_subscribe("plant/#", 2)
    assert olga.may_receive("plant/1")
    assert not olga.may_receive("plant/secret/1")
    device = rights.of("d1", "d1")
    assert device.may_publish("devices/d1/telemetry", 1, False)
    assert not device.may_publish("devices/d2/telemetry", 1, False)
    assert not rights.of("olga-1", "d1").may_connect()


def test_the_request_is_one_of_the_api() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    (body,) = re.findall(r"/rights -d '(.*?)'\n```", text, re.DOTALL)
    assert WantedRights.model_validate_json(body).version == 0


def limits_of(settings: type[BaseModel], prefix: str = "") -> set[str]:
    """Return the limits that a class of settings has: of a second, and of what stays."""
    kinds = (*(f"{kind}_per_second" for kind in RATES), *STOCKS)
    return {name for kind in kinds if (name := prefix + kind) in settings.model_fields}


OF_THE_GATEWAY = {"connects_per_second", "max_connections"}
LIMITS = {
    "a client": limits_of(LimitSettings) - OF_THE_GATEWAY | {"connects_before_ban"},
    "a user": limits_of(LimitSettings, "user_"),
    "a listener": limits_of(TcpListener) | {"max_connections"},
    "the gateway": limits_of(LimitSettings, "gateway_") | OF_THE_GATEWAY,
    "a tenant": set(TenantLimits.model_fields),
}


@pytest.mark.parametrize("whose", LIMITS)
def test_the_table_of_limits_has_those_that_there_are(whose: str) -> None:
    table = re.findall(r"^\|.*\|$", DOCUMENT.read_text().partition("## Limits")[2], re.MULTILINE)
    head, _, *rows = ([cell.strip() for cell in row.split("|")[1:-1]] for row in table)
    cells = " ".join(row[head.index(whose)] for row in rows)
    assert set(re.findall(r"`(\w+)`", cells)) == LIMITS[whose]


def test_no_limit_is_missed_by_its_name() -> None:
    """What is told apart above by prefix and kind is all that a client's settings limit."""
    others = {"failed_logins_before_ban", "ban_seconds", "when_retained_full", "when_too_fast"}
    of_clients = LIMITS["a client"] | LIMITS["a user"] | LIMITS["the gateway"]
    assert set(LimitSettings.model_fields) - others == of_clients - {"max_connections"}
    assert "max_connections" in GatewaySettings.model_fields
