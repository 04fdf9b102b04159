/** API keys: make, rotate, revoke. A key itself is shown once. */

import { fill, h } from "../core/dom.js";
import { form } from "../core/form.js";
import { moment } from "../core/format.js";
import { ask, badge, button, field, input, notice, select, table } from "../core/parts.js";
import { pagedList } from "../core/paged.js";
import { MAX_KEY_DESCRIPTION } from "../core/vocabulary.js";
import { scopeFields, scopeOf } from "./access_scope.js";

const PAGE = 200;
const DAY_MS = 86_400_000;
const LIVES = [
  ["", "never"],
  ["30", "in 30 days"],
  ["90", "in 90 days"],
  ["365", "in a year"],
];
const EMPTY = "There is no key. Make one below for each program that asks the API.";
const ONCE = "It is shown now and never again: only a hash of it is kept.";

export function keys({ api, signal }) {
  const once = h("div");
  const shown = keyTable({ rotate, revoke });
  const read = (cursor, mine) => api.get("/keys", { tenant: null, limit: PAGE, cursor }, mine);
  const list = pagedList(shown, read, signal);

  async function make(body, said) {
    const made = await api.send("POST", "/keys", body, { tenant: null });
    fill(
      once,
      shownOnce(made, said, () => fill(once)),
    );
    const box = once.querySelector("input");
    box.focus();
    box.select();
    await list.load();
  }
  async function rotate(key) {
    const question = `Make a key like ${key.id}? Both count until you revoke the old one.`;
    if (!(await ask(question, "Make it", "primary"))) return;
    const { description, role, topic_filters, tenants, expires_at } = key;
    const said = `The new key in place of ${key.id}`;
    await make({ description, role, topic_filters, tenants, expires_at }, said);
  }
  async function revoke(key) {
    if (!(await ask(`Revoke the key ${key.id}, ${key.description}?`, "Revoke"))) return;
    await api.send("DELETE", `/keys/${encodeURIComponent(key.id)}`, undefined, { tenant: null });
    notice(`Revoked: ${key.id}`);
    await list.load();
  }
  list.load();
  return h(
    "div",
    once,
    list.wrong,
    list.elements,
    newKey((body) => make(body, "The new key")),
  );
}

function keyTable({ rotate, revoke }) {
  const actions = (one) =>
    h(
      "span.actions",
      !one.expired && button("Rotate", () => rotate(one), { name: `Rotate ${one.id}` }),
      button("Revoke", () => revoke(one), { kind: "danger", name: `Revoke ${one.id}` }),
    );
  const columns = [
    { label: "Key", cell: (one) => one.id },
    { label: "What it is for", cell: (one) => one.description, class: "wide" },
    { label: "Role", cell: (one) => one.role },
    { label: "Reaches", cell: scopeOf, class: "wide" },
    { label: "Made", cell: (one) => `${moment(one.created_at)} by ${one.created_by}` },
    { label: "Expires", cell: expiry },
    { label: "", cell: actions },
  ];
  return table("Keys", columns, { empty: EMPTY, key: (one) => one.id });
}

function expiry({ expires_at: at, expired }) {
  if (expired) return badge("expired", "bad");
  return at ? moment(at) : "never";
}

/** A key that was made, until somebody says that it is kept. */
function shownOnce({ key }, label, done) {
  const box = input({ value: key, readonly: true });
  // Only pages that came by TLS, or from this machine, have a clipboard.
  const copy = async () => {
    await navigator.clipboard.writeText(key);
    notice("Copied.");
  };
  return h(
    "div.once",
    field(label, box, ONCE),
    h("div.actions", navigator.clipboard && button("Copy", copy), button("I have kept it", done)),
  );
}

function newKey(make) {
  const description = input({ required: true, maxlength: MAX_KEY_DESCRIPTION });
  const life = select(LIVES);
  const scope = scopeFields();
  const work = async () => {
    const expires_at = life.value && new Date(Date.now() + life.value * DAY_MS).toISOString();
    const body = { ...scope.read(), description: description.value };
    await make({ ...body, expires_at: expires_at || null });
    description.value = "";
  };
  const fields = [field("What it is for", description), ...scope.elements, field("Expires", life)];
  return h("details", h("summary", "Make a key"), form("Make the key", fields, work).element);
}
