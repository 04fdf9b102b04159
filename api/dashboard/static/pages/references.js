/** Reference tables: rows of one's own that rules and queries join. */

import { every, fill, h, inTurn } from "../core/dom.js";
import { form } from "../core/form.js";
import { bytes, count, moment } from "../core/format.js";
import { field, heading, input, notice, panel, select, stateBadge, table } from "../core/parts.js";
import { pagedList } from "../core/paged.js";
import { note } from "../core/place.js";
import { MAX_REFERENCE_DESCRIPTION } from "../core/vocabulary.js";
import { reference } from "./reference.js";

const REFRESH_MS = 5_000;
const PAGE = 200;
const ABOUT =
  "Tables of your own, from a file: which machine stands where, which limit counts for it. Rules and queries join them.";
const EMPTY = "There is no reference table. Upload a CSV or JSON file below to make one.";
const NONE_CHOSEN = "Choose a reference table to see its rows and versions.";
const FILE =
  "CSV with the names of the columns in its first line, or JSON objects, in an array or one a line. A table that is there gets these rows in place of its own, as a new version.";
const KEY = "Columns that tell rows apart, separated by commas; empty: the first one.";
const SCHEMA = "Columns as name TYPE, …; empty: as the values are.";
const TYPES = {
  json: "application/json",
  ndjson: "application/x-ndjson",
  jsonl: "application/x-ndjson",
};

export function mount({ api, signal, place }) {
  const beside = h("div.beside");
  const shown = referenceTable((one) => show(one.id));
  const read = (cursor, mine) => api.get("/references", { limit: PAGE, cursor }, mine);
  const list = pagedList(shown, read, signal);
  const follow = inTurn(signal, (mine, id) => {
    note("references", id);
    const empty = h("p.empty", NONE_CHOSEN);
    fill(beside, id ? reference(api, id, () => show(""), mine) : empty);
  });
  function show(id) {
    follow(id);
    return list.load();
  }
  every(REFRESH_MS, signal, list.load);
  follow(place.item);
  const listed = h("section.panel", { "aria-label": "List of reference tables" }, list.elements);
  return h(
    "div",
    heading("References"),
    h("p.hint", ABOUT),
    list.wrong,
    h("div.split", listed, beside),
    api.can("PUT /references/{id}") && panel("Upload a table", upload(api, show).element),
  );
}

function referenceTable(open) {
  const columns = [
    { label: "Table", cell: (one) => one.id },
    { label: "State", cell: (one) => stateBadge(one.state) },
    { label: "Rows", cell: (one) => count(one.rows), class: "number" },
    { label: "Size", cell: (one) => bytes(one.bytes), class: "number" },
    { label: "Changed", cell: (one) => moment(one.updated_at) },
    { label: "What it is", cell: (one) => one.description || "–", class: "wide" },
  ];
  return table("Reference tables", columns, { empty: EMPTY, open, key: (one) => one.id });
}

/** The form of an upload; `done` is called with the identifier of the table. */
function upload(api, done) {
  const id = input({ required: true });
  const file = h("input", {
    type: "file",
    required: true,
    accept: ".csv,.txt,.json,.ndjson,.jsonl",
  });
  const description = input({ maxlength: MAX_REFERENCE_DESCRIPTION });
  const key = input();
  const schema = input();
  const delimiter = select(["comma", "semicolon", "tab", "bar"]);
  async function work() {
    const [chosen] = file.files;
    const body = new Blob([chosen], { type: TYPES[chosen.name.split(".").at(-1)] ?? "text/csv" });
    // Nobody waits for the table here: the detail follows its state.
    const query = { key: key.value, schema: schema.value, delimiter: delimiter.value, wait: 0 };
    const path = `/references/${encodeURIComponent(id.value.trim())}`;
    const made = await api.send("PUT", path, body, { ...query, description: description.value });
    notice(`Reference table ${made.id}: ${made.state}, ${count(made.rows)} rows.`);
    await done(made.id);
  }
  const named = h("div.row", field("Identifier", id), field("What it is", description));
  const read = h(
    "div.row",
    field("Key", key, KEY),
    field("Columns", schema, SCHEMA),
    field("Between cells", delimiter),
  );
  return form("Upload", [named, field("File", file, FILE), read], work);
}
