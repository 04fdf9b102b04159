"""Names of the tables that rules write to."""

import re
from pathlib import Path

import pytest

from mqlake.records.rule_tables import rule_table, rule_tables, shown_name
from mqlake.tables.catalogue import RULE_TABLE_PATTERN

pytestmark = pytest.mark.promise

TENANTS = ("default", "acme", "beta", "a" * 63)
NAMES = ("rule_x", "rule_x__a", f"rule_{'x' * 63}")


def test_each_tenant_has_a_table_of_its_own_for_a_name() -> None:
    tables = {rule_table(tenant, name) for tenant in TENANTS for name in NAMES}
    assert len(tables) == len(TENANTS) * len(NAMES)
    assert rule_table("default", "rule_x") == "rule_x"
    for tenant in TENANTS[1:]:
        for name in NAMES:
            table = rule_table(tenant, name)
            assert re.fullmatch(r"\w+", table), "Spark takes it without quotes"
            assert shown_name(table) == name


def test_no_name_that_users_write_is_that_of_anothers_table() -> None:
    """Nor does one of `default` come to be another's: users may write two underscores, too."""
    for tenant in TENANTS[1:]:
        for name in NAMES:
            table = rule_table(tenant, name)
            assert not re.fullmatch(RULE_TABLE_PATTERN, table)
            assert shown_name(table.removeprefix("rule_")) == table.removeprefix("rule_")


def test_those_of_a_tenant_are_found(tmp_path: Path) -> None:
    there = [rule_table(tenant, name) for tenant in ("default", "acme") for name in NAMES]
    for name in (*there, "rules", "rule_UPPER", "rule__0_x", "reference_x", ".rule_x"):
        log = tmp_path / name / "_delta_log"
        log.mkdir(parents=True)
        (log / f"{0:020}.json").touch()
    (tmp_path / "rule_being_made" / "_delta_log").mkdir(parents=True)
    assert rule_tables(tmp_path) == sorted(there)
    assert rule_tables(tmp_path, "acme") == sorted(rule_table("acme", name) for name in NAMES)
    assert rule_tables(tmp_path, "default") == sorted(NAMES)
    assert rule_tables(tmp_path, "beta") == []
