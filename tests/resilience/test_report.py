"""Reports: what they say of promises, and that they stand by themselves."""

import json
from html.parser import HTMLParser
from typing import Any

from resilience.campaign import RESULT
from resilience.checkers import check
from resilience.double.proof import history
from resilience.page import to_html
from resilience.report import comparison, figures, load, merged, says, scorecard, to_json, to_text


def result(target: str = "left", *, defects: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    """A result as a campaign writes it, of two runs of the double."""
    runs = []
    for seed in (3, 4):
        recorder = history(seed, defects, groups=("flow",), share=1.0)
        judgement = check(recorder.header, recorder.operations)
        runs.append(
            {
                "seed": seed,
                "history": "run.jsonl",
                "faults": ["kill <node> at 1.00 s"],
                "problems": [],
                "broken": judgement.violated,
                "verdicts": [verdict.to_json() for verdict in judgement.verdicts],
                "measures": judgement.measures.to_json(),
            }
        )
    made = {
        "scenario": "2",
        "title": "a <title> & more",
        "source": "",
        "published": [
            {"broker": "EMQX", "rate_per_second": 400, "lost_percent": 1.75, "delay_ms": 8.25}
        ],
        "target": target,
        "target_title": target,
        "version": "1.0",
        "promises": {"durability": "D1"},
        "settings": {},
        "driver": "raw",
        "scale": 1.0,
        "runs": runs,
    }
    return json.loads(json.dumps({**made, **more}))  # type: ignore[no-any-return]


class Tags(HTMLParser):
    """Counts tags, and refuses whatever would be loaded from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert not {"src", "href"} & {name for name, _ in attrs}


def test_verdicts_of_several_runs_add_up() -> None:
    made = result(defects=("drop",))
    row = next(row for row in merged(v for r in made["runs"] for v in r["verdicts"]))
    parts = [run["verdicts"][0] for run in made["runs"]]
    assert row["name"] == "lost"
    assert row["checked"] == sum(part["checked"] for part in parts)
    assert row["kinds"]["lost"] == row["violations"] == sum(p["violations"] for p in parts) > 0
    assert row["witness"]


def test_who_promises_less_is_not_blamed() -> None:
    row = {"violations": 2, "checked": 10, "kinds": {"lost": 2}, "promise": "no_loss"}
    assert says(row, {}) == "broken: 2 of 10 (lost 2)"
    assert says(row, {"no_loss": False}) == "not promised: 2 of 10 (lost 2)"
    none = {"violations": 0, "checked": 0, "kinds": {}, "promise": "no_loss", "at_most": None}
    assert says(none, {}) == "not tested"
    assert says({**none, "checked": 300, "at_most": 0.01}, {}) == "holds: 0 of 300, ≤ 1 % at 95 %"


def test_targets_stand_side_by_side() -> None:
    rows = scorecard([result("left"), result("right", defects=("drop",))])
    assert rows[0] == ["promise", "left", "right"]
    lost = next(row for row in rows if row[0].startswith("lost"))
    assert lost[1].startswith("holds")
    assert lost[2].startswith("broken")


def test_a_promise_is_that_of_each_scenario() -> None:
    """A power loss takes promises: neither hides another scenario's loss, nor is it blamed."""
    excused = result(defects=("drop",), promises={"no_loss": False})
    broken = result(defects=("drop",), scenario="3")

    def lost(*results: dict[str, Any]) -> str:
        return next(row for row in scorecard(results) if row[0].startswith("lost"))[1]

    assert lost(excused).startswith("not promised: ")
    assert lost(result(), excused).startswith("holds: 0 of ")
    assert "; not promised: " in lost(result(), excused)
    for order in ((excused, broken), (broken, excused)):
        assert lost(*order) == f"{lost(broken)}; {lost(excused)}"


def test_the_time_until_something_comes_again_at_a_fault_is_told() -> None:
    made = result()
    for run, seconds in zip(made["runs"], (0.5, 2.0), strict=True):
        fault = {"fault": "kill", "part": "a", "at": 1.0, "seconds": 0.7}
        run["measures"]["faults"] = [{**fault, "silence": seconds}]
    ((_, rows),) = comparison([made])
    assert rows[1][-1] == "2.00 / 2.00 s"
    page = to_html([made])
    assert "<td>kill</td><td>a</td><td>1.00 s</td><td>0.70 s</td><td>0.50 s</td>" in page
    assert f"At {made['runs'][0]['measures']['rate_per_second']:g} acknowledged messages" in page


def test_ours_stand_above_the_published_figures() -> None:
    ((title, rows),) = comparison([result("left"), result("right")])
    assert title.startswith("2: ")
    assert [row[0] for row in rows[1:]] == ["left (raw)", "right (raw)", "published: EMQX"]
    assert rows[3][2:4] == ["400", "1.75"]
    assert rows[3][-3:] == ["8.25 ms", "", ""]
    assert len({len(row) for row in rows}) == 1
    assert figures(result())["lost_percent"] == 0


def test_the_page_needs_nothing_else_and_quotes_what_it_shows() -> None:
    page = to_html([result(defects=("drop",)), result("right")])
    tags = Tags()
    tags.feed(page)
    assert {"svg", "circle", "table", "pre"} <= set(tags.seen)
    assert "script" not in tags.seen
    assert "a &lt;title&gt; &amp; more" in page
    assert "<title> & more" not in page
    assert "kill &lt;node&gt;" in page


def test_a_run_without_a_delivery_has_a_page_too() -> None:
    made = result()
    for run in made["runs"]:
        run["measures"].update(series=[], outage_seconds={})
    assert "Nothing was delivered" in to_html([made])


def test_text_and_json_say_the_same(tmp_path: Any) -> None:
    made = result(defects=("drop",))
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / RESULT).write_text(json.dumps(made))
    results = load(tmp_path)
    shown = to_json(results)["results"][0]
    lost = next(row for row in shown["verdicts"] if row["name"] == "lost")
    assert f"broken: {lost['violations']} of {lost['checked']}" in to_text(results)


def test_what_a_target_takes_is_plotted_over_the_runs_of_a_soak() -> None:
    soak = result()
    assert "polyline" not in to_html([soak]).partition("<body>")[2]
    for run, memory in zip(soak["runs"], (100_000_000, 120_000_000), strict=True):
        run["usage"] = {"at": run["seed"], "memory": memory, "files": 40, "disk": 5_000_000}
    page = to_html([soak])
    assert "memory, MB: 100 to 120, at most 120" in page
    assert "files: 40 to 40, at most 40" in page
    tags = Tags()
    tags.feed(page)
    assert tags.seen.count("polyline") == 3
