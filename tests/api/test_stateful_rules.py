"""Stateful rules over REST, without Spark: what is taken, and what they cannot have done."""

from dataclasses import replace
from typing import Any

import pytest

from api.jobs.jobs import Job
from api.log.following import Followed
from api.references.materialised import MaterialisedReferences
from mqlake.records.messages import RULES
from mqlake.records.references import (
    ReferenceKey,
    ReferenceState,
    encode_reference_state,
    reference_key,
)
from rules.errors import RuleError
from tests.api.conftest import Api
from tests.api.test_jobs import await_end
from tests.api.test_rules import activate, post
from tests.api.test_schemas import register, status

WINDOW = "SELECT count(*) AS n FROM 'a' GROUP BY tumble(timestamp, '1 minute')"
DECODED = (
    "SELECT max(payload.t) AS t FROM 'a' DECODE 's' GROUP BY topic, tumble(timestamp, '1 minute')"
)
JOINED = "SELECT m.site AS site FROM 'a' AS a JOIN machines AS m ON a.clientid = m.id"


def make_reference(api: Api) -> None:
    columns = (("id", "STRING"), ("site", "STRING"))
    state: dict[str, Any] = {"number": 1, "version": 0, "columns": columns, "key": ("id",)}
    found = ReferenceState(tenant="default", reference="machines", state="ready", **state)
    key = reference_key(ReferenceKey("state", "default", "machines"))
    record = Followed(RULES, 1_000_000, key, encode_reference_state(found))
    assert api.references.take([record], is_old=False) == []


def test_a_rule_with_memory_decodes_by_the_schemas_of_its_tenant(api: Api) -> None:
    assert status(api, "POST", "/rules", sql=DECODED)[0] == 422
    register(api)
    post(api, "r1", sql=DECODED)
    shown = api.get("/rules/r1/explain")
    assert (shown["expression"], shown["schemas"]) == (None, ["s:1"])
    assert shown["plan"]["streams"]
    assert status(api, "DELETE", "/schemas/s")[0] == 409


def test_a_rule_joins_the_references_of_its_tenant(api: Api) -> None:
    code, said = status(api, "POST", "/rules", sql=JOINED)
    assert code == 422
    assert "machines" in said
    make_reference(api)
    post(api, "r1", sql=JOINED)
    asked = {"json": {"sql": JOINED}}
    assert api.request("POST", "/rules/validate", **asked).json()["valid"]
    asked["params"] = {"tenant": "other"}
    assert not api.request("POST", "/rules/validate", **asked).json()["valid"]


def test_neither_a_backfill_nor_a_rerun_is_made_of_a_rule_with_memory(api: Api) -> None:
    post(api, "r1", sql=WINDOW)
    activate(api, "r1", 1)
    code, said = status(api, "POST", "/rules/r1/backfill")
    assert code == 409
    assert "memory" in said
    code, said = status(api, "POST", "/rules/r1/dead_letters/rerun")
    assert code == 422
    assert "memory" in said


@pytest.mark.parametrize(
    ("kind", "request_"),
    [
        ("backfill", {"version": 1, "from_ms": None, "rate": 1}),
        ("rerun", {"error": None, "from_ms": None, "to_ms": None, "rate": 1}),
    ],
)
def test_nor_does_one_go_on_when_the_rule_has_memory_now(
    api: Api, kind: str, request_: dict[str, Any]
) -> None:
    post(api, "r1", sql=WINDOW)
    activate(api, "r1", 1)

    def work(_job: Job) -> dict[str, Any]:
        raise RuleError("as it happens")

    job = api.services.runs.jobs.start(kind, "default", "r1", work, request_)
    await_end(job)
    code, said = status(api, "POST", f"/jobs/{job.id}/resume")
    assert code == 409
    assert "memory" in said


def test_a_dry_run_of_a_rule_with_memory_is_asked_for_as_json(api: Api) -> None:
    make_reference(api)
    post(api, "r1", sql=JOINED)
    activate(api, "r1", 1)
    asked = {"json": {"sql": WINDOW}}
    job_id = api.request("POST", "/rules/r1/dry_run", **asked).json()["id"]
    job = api.services.runs.jobs.get(job_id)
    assert job is not None
    assert job.request is not None
    assert job.request["sql"] == WINDOW
    assert job.request["other"] == {"sql": JOINED, "version": 1}
    works = api.services.runs.rules
    without = replace(works, references=MaterialisedReferences())
    with pytest.raises(RuleError, match="machines"):
        without.dry_run("default", job.request)
    works.dry_run("default", job.request)


def test_history_that_is_in_two_tables_is_not_joined(api: Api) -> None:
    sql = """SELECT a.topic AS topic FROM 'a' AS a JOIN '$events/client_connected' AS b
        ON a.clientid = b.clientid WITHIN '1 minute'"""
    code, said = status(api, "POST", "/rules/r1/dry_run", sql=sql)
    assert code == 422
    assert "two rules" in said
    sql = WINDOW.replace("'a'", "'$events/client_connected'")
    assert api.request("POST", "/rules/r1/dry_run", json={"sql": sql}).status_code == 202
