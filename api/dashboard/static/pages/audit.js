/** Who has changed what, and who has logged in: the table audit_log, the newest first. */

import { fill, h, say } from "../core/dom.js";
import { form } from "../core/form.js";
import { indented, moment } from "../core/format.js";
import {
  badge,
  block,
  button,
  check,
  facts,
  field,
  heading,
  input,
  panel,
  select,
  table,
} from "../core/parts.js";
import { quoted } from "../core/sql.js";

const PAGE = 100;
const DAYS = [
  ["1", "The last day"],
  ["7", "The last week"],
  ["31", "The last month"],
  ["", "Everything"],
];
const COLUMNS =
  "ts, caller, role, credential, address, agent, request_id, operation, target, status, gateway, detail, asked, `before`, `after`";
const ORDER = "ts DESC, log_partition DESC, log_offset DESC";
const ABOUT =
  "Each request that would change something, and each login that failed, is here some seconds after its answer. Passwords and keys are in none.";
const EMPTY = "Nothing was changed in this time: look further back, or ask for less above.";
const NONE_CHOSEN =
  "Choose a request to see what it asked for, and what was there before and after.";

export function mount({ api, signal }) {
  api.startSpark();
  const beside = h("div.beside", h("p.empty", NONE_CHOSEN));
  const said = h("p.hint", { role: "status" }, "");
  const shown = requestTable((one) => fill(beside, detail(one)));
  const filters = filterFields();
  let items = [];
  let conditions = [];
  async function read() {
    say(said, "Reading…");
    const query = selectOf(conditions, items.length);
    const wait = () => say(said, "Waiting for Spark…");
    try {
      const asked = { query, format: "json", limit: PAGE };
      const found = await (await api.askSpark("/sql", asked, signal, wait)).json();
      items = [...items, ...rowsOf(found)];
      shown.show(items);
      more.hidden = !found.truncated;
    } finally {
      say(said, "");
    }
  }
  function restart() {
    items = [];
    conditions = filters.read();
    return read();
  }
  const more = button("More", read);
  more.hidden = true;
  const asking = form("Show", filters.elements, restart, { class: "row" });
  asking.send();
  const listed = h("section.panel", { "aria-label": "Requests" }, said, shown.element, more);
  const split = h("div.split", listed, beside);
  return h("div", heading("Audit"), h("p.hint", ABOUT), asking.element, split);
}

/** What is looked for; `read` gives the conditions of the SELECT. */
function filterFields() {
  const caller = input({ type: "search" });
  const target = input({ type: "search" });
  const days = select(DAYS, { value: "7" });
  const failed = check("Only what was refused or has failed");
  return {
    elements: [
      field("Caller", caller),
      field("Path contains", target),
      field("Since", days),
      failed.element,
    ],
    read() {
      // What is written while somebody looks at later pages does not shift them.
      const until = `ts <= TIMESTAMP ${quoted(new Date().toISOString())}`;
      const found = [
        until,
        days.value && `ts > now() - INTERVAL ${Number(days.value)} DAYS`,
        caller.value.trim() && `caller = ${quoted(caller.value.trim())}`,
        target.value.trim() && `contains(target, ${quoted(target.value.trim())})`,
        failed.box.checked && "status >= 400",
      ];
      return found.filter(Boolean);
    },
  };
}

function selectOf(conditions, offset) {
  const where = conditions.join(" AND ");
  return `SELECT ${COLUMNS} FROM audit_log WHERE ${where} ORDER BY ${ORDER} LIMIT ${PAGE + 1} OFFSET ${offset}`;
}

/** Return the rows of an answer of `POST /sql` as objects. */
function rowsOf({ columns, rows }) {
  const names = columns.map((one) => one.name);
  return rows.map((row) => Object.fromEntries(names.map((name, at) => [name, row[at]])));
}

function requestTable(open) {
  const columns = [
    { label: "When", cell: (one) => moment(one.ts) },
    { label: "Caller", cell: (one) => one.caller },
    { label: "Asked for", cell: (one) => one.operation },
    { label: "Path", cell: (one) => one.target, class: "wide" },
    { label: "Answer", cell: outcome },
  ];
  return table("Requests", columns, { empty: EMPTY, open });
}

/** The status of the answer; a file that was read again has none. */
function outcome({ status, detail: why }) {
  if (status === null) return why ? badge("not used", "bad") : badge("read", "good");
  return badge(String(status), status < 400 ? "good" : status < 500 ? "warn" : "bad");
}

function detail(one) {
  const text = (label, value) => value && [h("h3", label), block(label, indented(value))];
  return panel(
    one.operation,
    { class: "detail" },
    facts([
      ["When", moment(one.ts)],
      ["Caller", one.caller],
      ["Role", one.role],
      ["Shown", one.credential],
      ["Address", one.address],
      ["Program", one.agent],
      ["Path", one.target],
      ["Answer", outcome(one)],
      one.detail && ["Why", one.detail],
      one.gateway && ["Gateway", one.gateway],
      ["Request", one.request_id],
    ]),
    text("Asked for", one.asked),
    text("Before", one.before),
    text("After", one.after),
  );
}
