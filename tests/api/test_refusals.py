"""Errors of services as answers."""

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from api.entrance import refusals
from api.jobs.jobs import TooManyJobs
from api.log.repository import NotThere
from api.rules.changes import VersionConflict
from api.spark.connect import SparkAway, SparkStarting
from api.sql.brake import EndsSparkError
from api.sql.errors import QueryTimeoutError
from api.sql.room import NoRoomError
from api.sql.running import TooManyQueriesError
from api.tenants.rights import RightsChanged
from api.web import problems
from mqlake.errors import LogError, MqlakeError, OffsetGone
from mqlake.processes.log_disk import LogDiskFull
from rules.errors import RuleError


def answer(error: Exception, headers: dict[str, str] | None = None) -> httpx.Response:
    """Ask for what fails."""
    app = FastAPI()
    problems.register(app)
    refusals.register(app)

    @app.get("/")
    def fail() -> None:
        raise error

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://mqlake") as client:
            return await client.get("/", headers=headers)

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after"),
    [
        (LogError("it refuses", definite=True), 503, "unavailable", None),
        (LogError("it does not answer", definite=False), 503, "outcome_unknown", None),
        (OffsetGone("derived from it"), 503, "outcome_unknown", None),
        (SparkAway("it is away"), 503, "unavailable", None),
        (SparkStarting("it starts"), 503, "unavailable", "1"),
        (TooManyQueriesError("20 run"), 503, "unavailable", "5"),
        (EndsSparkError(417), 429, "rate_limited", "417"),
        (NoRoomError("all of it is used"), 429, "rate_limited", "10"),
        (TooManyJobs("20 wait"), 429, "rate_limited", "10"),
        (LogDiskFull("0 MiB free"), 507, "log_full", "10"),
        (NotThere("there is none"), 404, "not_found", None),
        (RightsChanged("version 2 is in force"), 409, "version_conflict", None),
        (MqlakeError("what nobody expects"), 500, "internal_error", None),
    ],
)
def test_the_kind_of_an_error_says_the_answer(
    error: MqlakeError, status: int, code: str, retry_after: str | None
) -> None:
    found = answer(error)
    assert (found.status_code, found.json()["code"]) == (status, code)
    assert found.headers.get("Retry-After") == retry_after
    if status != 500:
        assert found.json()["detail"] == str(error)


@pytest.mark.parametrize(("if_match", "status"), [(None, 409), ("*", 409), ('"3"', 412)])
def test_a_version_is_told_from_where_it_was_named(if_match: str | None, status: int) -> None:
    headers = None if if_match is None else {"If-Match": if_match}
    assert answer(VersionConflict("it is at 4"), headers).status_code == status


@pytest.mark.parametrize(
    ("error", "members"),
    [
        (
            QueryTimeoutError("it took longer", line=2, column=7),
            {"code": "query_timeout", "line": 2, "column": 7, "hint": None},
        ),
        (
            RuleError("it is wrong", line=1, column=3, fragment="x", hint="y"),
            {"code": "invalid_rule", "line": 1, "column": 3, "fragment": "x", "hint": "y"},
        ),
    ],
)
def test_what_is_wrong_in_sql_has_its_place(error: MqlakeError, members: dict[str, Any]) -> None:
    found = answer(error)
    assert found.status_code == 422
    assert {name: found.json()[name] for name in members} == members
