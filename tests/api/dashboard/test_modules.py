"""Modules of the dashboard that need no page, run in the browser: what they compute is compared."""

from typing import Any

import pytest

from tests.integration.dashboard.browser import Dashboard

pytestmark = pytest.mark.programs


def run(dashboard: Dashboard, module: str, expression: str, argument: Any = None) -> Any:
    """Return an expression over what a module exports, which is `m`; `x` is the argument."""
    script = f"async (x) => {{ const m = await import('{module}'); return {expression}; }}"
    return dashboard.page.evaluate(script, argument)


@pytest.fixture
def loaded(dashboard: Dashboard) -> Dashboard:
    dashboard.open("alarms")
    return dashboard


def test_sql_keeps_its_text_and_gets_its_colours(loaded: Dashboard) -> None:
    text = "SELECT payload.from AS a, avg(x) -- why\nFROM 'plant/''+' WHERE t > 1.5e3 /* open"
    pieces = run(loaded, "/dashboard/core/sql.js", "m.tokens(x)", text)
    assert "".join(piece for _, piece in pieces) == text
    coloured = [(kind, piece) for kind, piece in pieces if kind]
    assert coloured == [
        ("keyword", "SELECT"),
        ("keyword", "AS"),
        ("function", "avg"),
        ("comment", "-- why"),
        ("keyword", "FROM"),
        ("text", "'plant/''+'"),
        ("keyword", "WHERE"),
        ("number", "1.5e3"),
        ("comment", "/* open"),
    ]


def test_the_tree_of_topics_is_bounded(loaded: Dashboard) -> None:
    shown = """(() => {
      const tree = new m.TopicTree();
      for (let n = 0; n < 10_050; n += 1) tree.put(`t/${n}`, {last: n});
      tree.put('t/60', {last: 'again'});
      tree.put('new', {last: 1});
      return [tree.size, tree.topic('t/49'), tree.topic('t/51'), tree.topic('t/60').last,
              tree.rows().length];
    })()"""
    size, gone, oldest, again, rows = run(loaded, "/dashboard/core/tree.js", shown)
    assert (size, gone, again) == (10_000, None, "again")
    assert oldest is not None
    # Of the ten thousand only what is open is in the list.
    assert rows <= 10_001


def test_what_spark_answers_is_asked_again_while_it_starts(loaded: Dashboard) -> None:
    shown = """await (async () => {
      const real = globalThis.fetch;
      const answers = x.map(([status, body, headers]) => new Response(body, {status, headers}));
      let waits = 0;
      try {
        globalThis.fetch = async () => answers.shift();
        const answer = await new m.Api().askSpark("/sql", {}, undefined, () => { waits += 1; });
        return [waits, await answer.text()];
      } catch (problem) {
        return [waits, problem.status, problem.message];
      } finally {
        globalThis.fetch = real;
      }
    })()"""
    soon = [503, '{"detail": "Spark is starting"}', {"Retry-After": "0.01"}]
    away = [503, '{"detail": "no query application"}', {}]

    def asked(*answers: list[Any]) -> Any:
        return run(loaded, "/dashboard/core/api.js", shown, list(answers))

    assert asked(soon, [200, "rows", {}]) == [1, "rows"]
    assert asked(soon, away) == [1, 503, "no query application"]
