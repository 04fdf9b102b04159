/** One reference table: its columns, its rows, its versions. */

import { fill, h } from "../core/dom.js";
import { followed } from "../core/followed.js";
import { bytes, cell, count, moment } from "../core/format.js";
import {
  ask,
  attempt,
  button,
  facts,
  notice,
  panel,
  stateBadge,
  table,
  tabs,
} from "../core/parts.js";
import { pagedList } from "../core/paged.js";
import { link } from "../core/place.js";

const REFRESH_MS = 2_000;
const PAGE = 100;

/** Followed until a signal ends it; `gone` is called when it was deleted. */
export function reference(api, id, gone, signal) {
  const path = `/references/${encodeURIComponent(id)}`;
  const read = () => api.get(path, {}, signal);
  return followed(REFRESH_MS, signal, read, (found) => detail(api, path, found, gone, signal));
}

function detail(api, path, found, gone, signal) {
  async function remove() {
    const question = `Delete the reference table ${found.id}? Rules that join it fail then.`;
    if (!(await ask(question, "Delete"))) return;
    await api.send("DELETE", path, undefined, { wait: 0 });
    notice(`Asked for: the deletion of ${found.id}`);
    gone();
  }
  const mayDelete = api.can("DELETE /references/{id}");
  const query = `SELECT * FROM ${found.table} LIMIT 100`;
  const pages = [
    { label: "Rows", make: () => rows(api, path, found, signal) },
    { label: "Versions", make: () => versions(api, path, found, signal) },
  ];
  return panel(
    found.id,
    { class: "detail", actions: mayDelete && button("Delete", remove, { kind: "danger" }) },
    found.error && h("p.problem", { role: "alert" }, found.error),
    facts([
      ["State", stateBadge(found.state)],
      ["Version", found.version],
      ["Rows", count(found.rows)],
      ["Size", bytes(found.bytes)],
      ["Key", found.key.join(", ")],
      ["In SQL", h("a", { href: link("sql", "", { query }) }, found.table)],
      ["Changed", moment(found.updated_at)],
      found.description && ["What it is", found.description],
    ]),
    tabs(`Of ${found.id}`, pages).element,
  );
}

function rows(api, path, found, signal) {
  if (found.version === null) return h("p.empty", "Its rows are being written.");
  const columns = found.columns.map(({ name, type }) => ({
    label: h("span", { title: type }, name),
    cell: (row) => cell(row[name]),
  }));
  const shown = table("Rows", columns, { empty: "It has no rows." });
  const read = (cursor, mine) => api.get(`${path}/rows`, { limit: PAGE, cursor }, mine);
  const list = pagedList(shown, read, signal);
  list.load();
  return h("div", list.wrong, list.elements);
}

function versions(api, path, found, signal) {
  const wrong = h("div");
  async function back(version) {
    const question = `Give ${found.id} the rows of version ${version}, as a new version?`;
    if (!(await ask(question, "Roll back", "primary"))) return;
    await api.send("POST", `${path}/versions/${version}/rollback`, undefined, { wait: 0 });
    notice(`Asked for: version ${version} of ${found.id}`);
  }
  const mayRollBack = api.can("POST /references/{id}/versions/{version}/rollback");
  const rollBack = ({ version }) => {
    if (version === found.version) return "newest";
    const options = { kind: "quiet", name: `Roll back to version ${version}`, report: wrong };
    return mayRollBack && button("Roll back", () => back(version), options);
  };
  const shown = table("Versions", [
    { label: "Version", cell: (one) => String(one.version) },
    { label: "Made", cell: (one) => moment(one.created_at) },
    { label: "Rows", cell: (one) => count(one.rows), class: "number" },
    { label: "By", cell: (one) => (one.kind === "put" ? "upload" : `back to ${one.of_version}`) },
    { label: "", cell: rollBack },
  ]);
  attempt(wrong, async () => {
    shown.show((await api.get(`${path}/versions`, { limit: PAGE }, signal)).items);
  });
  return fill(h("div"), wrong, shown.element);
}
