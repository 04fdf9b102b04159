/** Queries over the history: what there is, an editor, the result as table and as chart. */

import { isAborted, Problem, words } from "../core/api.js";
import { fill, h, say } from "../core/dom.js";
import { editor } from "../core/editor.js";
import { count, moment, seconds } from "../core/format.js";
import { button, field, heading, panel, problem, select, tabs } from "../core/parts.js";
import { resultChart, resultTable } from "./sql_result.js";

const KEY = "mqlake.query";
const FIRST =
  "SELECT topic, count(*) AS messages, max(ts) AS last\nFROM messages\nGROUP BY topic ORDER BY messages DESC";
const LIMITS = [
  ["100", "100 rows"],
  ["1000", "1,000 rows"],
  ["10000", "10,000 rows"],
];
const NO_RESULT =
  "Results are shown here: press Run, or Ctrl+Enter in the query. The tables beside it say what may be asked.";
const KEEP_URL_MS = 10_000;

export function mount({ api, signal, place }) {
  api.startSpark();
  const result = h("section.panel", { "aria-label": "Result" }, h("p.empty", NO_RESULT));
  const limit = select(LIMITS, { value: "1000" });
  const query = editor({
    label: "Query",
    rows: 7,
    value: place.query.get("query") || sessionStorage.getItem(KEY) || FIRST,
    onChange: (text) => sessionStorage.setItem(KEY, text),
    onRun: () => run(),
  });
  const asking = asker(api, query, limit, signal);
  async function run() {
    const began = performance.now();
    const answer = await asking.send("json");
    const found = await answer?.json();
    if (!found || signal.aborted) return;
    asking.say(sizeOf(found, (performance.now() - began) / 1000));
    fill(result, resultOf(found, signal));
  }
  asking.start.addEventListener("click", run);
  const saving = (format, name) =>
    button(`Save as ${name}`, () => save(asking, format), { kind: "quiet" });
  const buttons = [asking.start, asking.stop, field("At most", limit)];
  const controls = h("div.row", buttons, saving("csv", "CSV"), saving("parquet", "Parquet"));
  const written = panel("Query", query.element, controls, asking.elements);
  const known = relations(api, signal, (text) => query.insert(text));
  const tables = panel("Tables", { class: "schema" }, known);
  return h("div", heading("SQL"), h("div.sql", tables, h("div", written, result)));
}

/**
 * Asks what the editor holds, one query at a time.
 *
 * @returns {Object} `send` takes a format and resolves to the answer, or to null: what is wrong is shown where it is.
 */
function asker(api, query, limit, signal) {
  const wrong = h("div");
  const said = h("p.hint", { role: "status" }, "");
  let asking = null;
  signal.addEventListener("abort", () => asking?.abort());
  const start = h("button.primary", { type: "button", title: "Ctrl+Enter" }, "Run");
  const click = () => asking?.abort();
  const stop = h("button", { type: "button", hidden: true, on: { click } }, "Cancel");
  const wait = () => say(said, "Waiting for Spark…");
  function show(isAsking) {
    start.disabled = isAsking;
    stop.hidden = !isAsking;
  }
  async function send(format) {
    asking?.abort();
    const mine = new AbortController();
    asking = mine;
    show(true);
    fill(wrong);
    query.mark([]);
    say(said, "Running…");
    try {
      const body = { query: query.value, format, limit: Number(limit.value) };
      return await api.askSpark("/sql", body, mine.signal, wait);
    } catch (error) {
      say(said, isAborted(error) ? "Cancelled." : "");
      if (!isAborted(error)) tell(query, wrong, error);
      return null;
    } finally {
      if (asking === mine) show(false);
    }
  }
  return { start, stop, elements: [said, wrong], send, say: (text) => say(said, text) };
}

/** Say what is wrong: in the query, if it is there. */
function tell(query, wrong, error) {
  if (error instanceof Problem && error.body.line) {
    const { line, column, hint } = error.body;
    query.mark([{ problem: words(error), line, column, hint }]);
  } else {
    problem(wrong, error);
  }
}

function sizeOf(found, took) {
  const rows = `${count(found.row_count)} rows${found.truncated ? ", and there are more" : ""}`;
  const until = found.complete_until
    ? `Complete until ${moment(found.complete_until)}.`
    : "It is not known up to when the tables are complete.";
  return `${rows} in ${took < 10 ? `${took.toFixed(1)} s` : seconds(took)}. ${until}`;
}

function resultOf(found, signal) {
  return tabs("Result", [
    { label: "Table", make: () => resultTable(found) },
    { label: "Chart", make: () => resultChart(found, signal) },
  ]).element;
}

async function save(asking, format) {
  const answer = await asking.send(format);
  if (!answer) return;
  const url = URL.createObjectURL(await answer.blob());
  h("a", { href: url, download: `result.${format}` }).click();
  setTimeout(() => URL.revokeObjectURL(url), KEEP_URL_MS);
  asking.say(`Saved as result.${format}.`);
}

/** The relations that a query may name; a button puts a name into the query. */
function relations(api, signal, insert) {
  const place = h("div.relations", h("p.empty", "Reading…"));
  api.get("/sql/relations", {}, signal).then(
    (found) =>
      fill(
        place,
        found.items.map((one) => relation(one, insert)),
      ),
    (error) => !isAborted(error) && problem(place, error),
  );
  return place;
}

function relation({ name, comment, columns }, insert) {
  const link = (text, said, label) =>
    h(
      "button.link",
      { type: "button", "aria-label": label, on: { click: () => insert(text) } },
      said,
    );
  const column = (one) =>
    h("li", { title: one.comment }, link(one.name, one.name), h("small", ` ${one.type}`));
  return h(
    "details",
    h("summary", name),
    h("p.hint", comment, " ", link(name, "insert", `Insert ${name}`)),
    h("ul", columns.map(column)),
  );
}
