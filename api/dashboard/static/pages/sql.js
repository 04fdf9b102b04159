/** Queries over the history: what there is, an editor, the result as table and as chart. */

import { isAborted, Problem, words } from "../core/api.js";
import { chart } from "../core/chart.js";
import { fill, h } from "../core/dom.js";
import { editor } from "../core/editor.js";
import { cell, count, seconds } from "../core/format.js";
import { button, field, heading, panel, problem, select, table, tabs } from "../core/parts.js";

const KEY = "mqlake.query";
const FIRST =
  "SELECT topic, count(*) AS messages, max(ts) AS last\nFROM messages\nGROUP BY topic ORDER BY messages DESC";
/** Rows put into the page at a time: all at once would hold it up. */
const ROWS_AT_ONCE = 200;
const MOST_CHART_ROWS = 5_000;
const NUMERIC = /^(?:tinyint|smallint|int|bigint|float|double|decimal.*)$/u;
const TEMPORAL = /^(?:timestamp.*|date)$/u;

export function mount({ api, signal, place }) {
  const result = h("div");
  const wrong = h("div");
  const said = h("p.hint", { role: "status" }, "");
  const limit = select(
    [
      ["100", "100 rows"],
      ["1000", "1,000 rows"],
      ["10000", "10,000 rows"],
    ],
    { value: "1000" },
  );
  let asking = null;
  signal.addEventListener("abort", () => asking?.abort());
  api.startSpark();

  const query = editor({
    label: "Query",
    rows: 7,
    value: place.query.get("query") || sessionStorage.getItem(KEY) || FIRST,
    onChange: (text) => sessionStorage.setItem(KEY, text),
    onRun: () => run(),
  });
  const start = h(
    "button.primary",
    { type: "button", title: "Ctrl+Enter", on: { click: () => run() } },
    "Run",
  );
  const stop = h(
    "button",
    { type: "button", hidden: true, on: { click: () => asking?.abort() } },
    "Cancel",
  );

  /** Ask, with what is wrong shown where it is wrong; return the answer, or null. */
  async function send(format) {
    asking?.abort();
    const mine = new AbortController();
    asking = mine;
    start.disabled = true;
    stop.hidden = false;
    fill(wrong);
    query.mark([]);
    said.textContent = "Running…";
    try {
      const body = { query: query.value, format, limit: Number(limit.value) };
      return await api.askSpark("/sql", body, mine.signal, () => {
        said.textContent = "Waiting for Spark…";
      });
    } catch (error) {
      said.textContent = isAborted(error) ? "Cancelled." : "";
      if (isAborted(error)) return null;
      if (error instanceof Problem && error.body.line) {
        query.mark([
          {
            problem: words(error),
            line: error.body.line,
            column: error.body.column,
            hint: error.body.hint,
          },
        ]);
      } else {
        problem(wrong, error);
      }
      return null;
    } finally {
      if (asking === mine) {
        start.disabled = false;
        stop.hidden = true;
      }
    }
  }

  async function run() {
    const began = performance.now();
    const answer = await send("json");
    if (!answer) return;
    const found = await answer.json();
    if (signal.aborted) return;
    const took = (performance.now() - began) / 1000;
    said.textContent = `${count(found.row_count)} rows${found.truncated ? ", and there are more" : ""} in ${took < 10 ? took.toFixed(1) + " s" : seconds(took)}.`;
    fill(
      result,
      tabs("Result", [
        { label: "Table", make: () => resultTable(found) },
        { label: "Chart", make: () => resultChart(found, signal) },
      ]).element,
    );
  }

  async function save(format) {
    const answer = await send(format);
    if (!answer) return;
    const url = URL.createObjectURL(await answer.blob());
    h("a", { href: url, download: `result.${format}` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
    said.textContent = `Saved as result.${format}.`;
  }

  return h(
    "div",
    heading("SQL"),
    h(
      "div.sql",
      panel(
        "Tables",
        { class: "schema" },
        schema(api, signal, (text) => query.insert(text)),
      ),
      h(
        "div",
        panel(
          "Query",
          query.element,
          h(
            "div.row",
            start,
            stop,
            field("At most", limit),
            button("Save as CSV", () => save("csv"), { kind: "quiet" }),
            button("Save as Parquet", () => save("parquet"), { kind: "quiet" }),
          ),
          said,
          wrong,
        ),
        h(
          "section.panel",
          { "aria-label": "Result" },
          fill(result, h("p.empty", "Results are shown here.")),
        ),
      ),
    ),
  );
}

/** The relations that a query may name; a button puts a name into the query. */
function schema(api, signal, insert) {
  const place = h("div.relations", h("p.empty", "Reading…"));
  api.get("/sql/relations", {}, signal).then(
    (found) =>
      fill(
        place,
        found.items.map((relation) =>
          h(
            "details",
            h("summary", relation.name),
            h(
              "p.hint",
              relation.comment,
              " ",
              h(
                "button.link",
                {
                  type: "button",
                  "aria-label": `Insert ${relation.name}`,
                  on: { click: () => insert(relation.name) },
                },
                "insert",
              ),
            ),
            h(
              "ul",
              relation.columns.map((column) =>
                h(
                  "li",
                  { title: column.comment },
                  h(
                    "button.link",
                    { type: "button", on: { click: () => insert(column.name) } },
                    column.name,
                  ),
                  h("small", ` ${column.type}`),
                ),
              ),
            ),
          ),
        ),
      ),
    (error) => !isAborted(error) && problem(place, error),
  );
  return place;
}

function resultTable(found) {
  const shown = table(
    "Result",
    found.columns.map((column, index) => ({
      label: h("span", { title: column.type }, column.name),
      cell: (row) => (row[index] === null ? h("i.null", "null") : cell(row[index])),
      class: NUMERIC.test(column.type) ? "number" : TEMPORAL.test(column.type) ? "" : "wide",
    })),
    { empty: "No rows." },
  );
  let next = Math.min(ROWS_AT_ONCE, found.rows.length);
  shown.show(found.rows.slice(0, next));
  const more = h(
    "button",
    { type: "button", hidden: next >= found.rows.length, on: { click: grow } },
    "",
  );
  function grow() {
    shown.add(found.rows.slice(next, next + ROWS_AT_ONCE));
    next += ROWS_AT_ONCE;
    say();
  }
  function say() {
    more.hidden = next >= found.rows.length;
    more.textContent = `Show more (${count(found.rows.length - next)} left)`;
  }
  say();
  return h("div.result", shown.element, more);
}

function resultChart(found, signal) {
  const named = found.columns.map((column, index) => [String(index), column.name]);
  const lines = found.columns
    .map((column, index) => [column, index])
    .filter(([column]) => NUMERIC.test(column.type));
  if (!lines.length || !found.rows.length) {
    return h(
      "p.empty",
      "A chart wants rows, and a column of numbers: CAST(… AS double) makes one of text.",
    );
  }
  const isLine = (index) => lines.some(([, other]) => other === index);
  const time = found.columns.findIndex((column) => TEMPORAL.test(column.type));
  const other = found.columns.findIndex((_column, index) => !isLine(index));
  const first = time >= 0 ? time : other >= 0 ? other : 0;
  const across = select(named, { value: String(first), on: { change: draw } });
  const boxes = lines.map(([column, index]) => {
    const box = h("input", { type: "checkbox", checked: index !== first, on: { change: draw } });
    return { box, index, name: column.name, element: h("label.check", box, column.name) };
  });
  const place = h("div");
  let ended = new AbortController();
  signal.addEventListener("abort", () => ended.abort());

  function draw() {
    ended.abort();
    ended = new AbortController();
    const at = Number(across.value);
    const chosen = boxes.filter(({ box, index }) => box.checked && index !== at);
    if (!chosen.length) {
      fill(place, h("p.empty", "Choose a column of numbers."));
      return;
    }
    const column = found.columns[at];
    const isTime = TEMPORAL.test(column.type);
    const isNumber = NUMERIC.test(column.type);
    let rows = found.rows.filter((row) => row[at] !== null).slice(0, MOST_CHART_ROWS);
    const xOf = (row) => (isTime ? Date.parse(utc(row[at])) / 1000 : Number(row[at]));
    if (isTime || isNumber) rows = rows.map((row) => row).sort((one, two) => xOf(one) - xOf(two));
    const shown = chart({
      label: `${chosen.map((one) => one.name).join(", ")} by ${column.name}`,
      series: chosen.map((one) => one.name),
      isTime,
      categories: isTime || isNumber ? undefined : rows.map((row) => cell(row[at])),
      hasBars: !isTime && !isNumber,
      hasPoints: true,
      format: cell,
      height: 320,
      signal: ended.signal,
    });
    fill(place, shown.element);
    shown.show([
      isTime || isNumber ? rows.map(xOf) : rows.map((_row, index) => index),
      ...chosen.map(({ index }) =>
        rows.map((row) => (row[index] === null ? null : Number(row[index]))),
      ),
    ]);
  }

  draw();
  return h(
    "div.result",
    h(
      "div.row",
      field("Across", across),
      h(
        "fieldset.fields",
        h("legend", "Lines"),
        boxes.map((one) => one.element),
      ),
    ),
    place,
  );
}

/** Times come in UTC; a text without a zone would be read as one of this browser's. */
function utc(text) {
  return /(?:Z|[+-]\d\d:?\d\d)$/u.test(text) || !text.includes(":")
    ? text
    : `${text.replace(" ", "T")}Z`;
}
