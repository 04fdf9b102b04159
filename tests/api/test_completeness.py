"""Up to when tables are complete, as answers say it."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from api.messages.completeness import _QUERIES, Completeness
from mqlake.processes.heartbeat import write_heartbeat
from mqlake.tables.catalogue import TABLES
from streaming import queries
from tests.api.conftest import Api
from tests.api.test_retained import put

AT_MS = 1_700_000_000_123
AT = datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)


def say_complete(data_dir: Path, **until_ms: int | None) -> None:
    """Say of queries of the lake what it would."""
    figures = {name: {"complete_until_ms": at} for name, at in until_ms.items()}
    path = data_dir / "run" / "lake.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_heartbeat(path, "lake", healthy=True, detail="", figures={"queries": figures})


def test_each_table_is_of_one_query_of_the_lake() -> None:
    assert _QUERIES.keys() == {table.name for table in TABLES}
    assert set(_QUERIES.values()) == {queries.HISTORY, queries.STATE, queries.OUTPUTS}


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        (["messages"], AT_MS),
        (["retained"], AT_MS - 5_000),
        (["messages", "retained", "reference_x"], AT_MS - 5_000),
        (["rule_hot", "messages"], AT_MS - 7_000),
        (["dead_letters"], AT_MS - 7_000),
        (["reference_x", "usage"], None),
        ([], None),
    ],
)
def test_several_tables_are_complete_up_to_the_earliest(
    tmp_path: Path, tables: list[str], expected: int | None
) -> None:
    say_complete(tmp_path, history=AT_MS, state=AT_MS - 5_000, outputs=AT_MS - 7_000)
    found = Completeness(tmp_path).until(tables)
    assert (None if found is None else round(found.timestamp() * 1000)) == expected


def test_what_nobody_says_is_not_known(tmp_path: Path) -> None:
    completeness = Completeness(tmp_path)
    assert completeness.until(["messages"]) is None
    say_complete(tmp_path, history=None)
    assert completeness.until(["messages"]) is None
    say_complete(tmp_path, history=AT_MS)
    assert completeness.until(["messages"]) == AT
    assert completeness.until(["messages", "retained"]) is None


def test_answers_about_retained_messages_say_it_also_where_there_is_none(api: Api) -> None:
    put(api.data_dir, "a")
    assert api.get("/retained")["complete_until"] is None
    assert "mqlake-complete-until" not in api.request("GET", "/retained/a").headers
    say_complete(api.data_dir, state=AT_MS)
    assert api.get("/retained")["complete_until"] == "2023-11-14T22:13:20.123000Z"
    for path, status in (("/retained", 200), ("/retained/a", 200), ("/retained/b", 404)):
        answer = api.request("GET", path)
        assert answer.status_code == status
        assert answer.headers["mqlake-complete-until"] == "2023-11-14T22:13:20.123Z"


class NoLetters:
    """In the place of Spark."""

    def rows(self, _query: str, _seconds: float, **_more: object) -> list[Any]:
        return []


def test_the_list_of_dead_letters_says_it(api: Api) -> None:
    api.put_in("queries", spark=NoLetters())
    assert api.get("/dead_letters")["complete_until"] is None
    say_complete(api.data_dir, outputs=AT_MS)
    answer = api.request("GET", "/dead_letters")
    assert answer.json() == {
        "items": [],
        "next_cursor": None,
        "complete_until": "2023-11-14T22:13:20.123000Z",
    }
    assert answer.headers["mqlake-complete-until"] == "2023-11-14T22:13:20.123Z"
