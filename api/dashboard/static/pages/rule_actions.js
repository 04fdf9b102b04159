/** The actions of a rule: a function each, with its arguments as JSON. */

import { fill, h } from "../core/dom.js";
import { select } from "../core/parts.js";

const FIRST = { function: "republish", args: { topic: "alarms/${clientid}" } };

/**
 * @param {Array<Object>} given As the API has them.
 * @param {function()} changed Called when somebody has changed one.
 * @returns {{element: Node, read: function(): Array<Object>}} `read` throws when arguments are not JSON.
 */
export function actionList(api, signal, given, changed) {
  const rows = h("div.action-list");
  const items = new Set();
  let schemas = {};

  function add(spec) {
    const item = action(spec, () => schemas, changed);
    const remove = () => {
      items.delete(item);
      row.remove();
      changed();
    };
    const name = { type: "button", "aria-label": "Remove this action", on: { click: remove } };
    const head = h("div.row", item.name, h("button.quiet", name, "Remove"));
    const row = h("div.action", head, item.args, item.hint);
    items.add(item);
    rows.append(row);
  }
  function addFirst() {
    add(FIRST);
    changed();
  }
  api.get("/rule_actions", { tenant: null }, signal).then(
    (found) => {
      schemas = found;
      for (const item of items) item.offer();
    },
    () => {},
  );
  given.forEach(add);
  const more = h("button.quiet", { type: "button", on: { click: addFirst } }, "Add an action");
  return { element: h("div", rows, more), read: () => [...items].map((item) => item.read()) };
}

/** One action; `schemas` returns those of all functions, `offer` is called when they have come. */
function action(spec, schemas, changed) {
  const name = select([spec.function], { "aria-label": "Function" });
  const value = JSON.stringify(spec.args ?? {}, null, 1);
  const label = "Arguments as JSON";
  const args = h("textarea.code", { rows: 3, spellcheck: "false", value, "aria-label": label });
  const hint = h("p.hint");

  function edited() {
    explain(schemas()[name.value], args, hint);
    changed();
  }
  function offer() {
    const now = name.value;
    const names = Object.keys(schemas());
    if (names.length) {
      fill(
        name,
        names.map((one) => h("option", { value: one }, one)),
      );
    }
    name.value = now;
    explain(schemas()[now], args, hint);
  }
  name.addEventListener("change", () => {
    args.value = JSON.stringify(example(schemas()[name.value]), null, 1);
    edited();
  });
  args.addEventListener("input", edited);
  offer();
  const read = () => ({
    function: name.value,
    args: JSON.parse(args.value),
    fallback: spec.fallback ?? [],
  });
  return { name, args, hint, offer, read };
}

/** Say which arguments a function takes, or why these are none. */
function explain(schema, args, hint) {
  const names = Object.keys(schema?.properties ?? {}).map((one) =>
    schema.required?.includes(one) ? `${one} (needed)` : one,
  );
  try {
    JSON.parse(args.value);
    args.removeAttribute("aria-invalid");
    fill(hint, names.length ? `Takes ${names.join(", ")}.` : "");
  } catch (error) {
    args.setAttribute("aria-invalid", "true");
    fill(hint, h("span.bad", `Not JSON: ${error.message}`));
  }
}

function example(schema) {
  const empty = (name) => (schema.properties[name]?.type === "integer" ? 0 : "");
  return Object.fromEntries((schema?.required ?? []).map((name) => [name, empty(name)]));
}
