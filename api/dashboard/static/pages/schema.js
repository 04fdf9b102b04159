/** One schema: its text, its versions, the rules that decode by it. */

import { isAborted } from "../core/api.js";
import { fill, h } from "../core/dom.js";
import { area, form } from "../core/form.js";
import { indented, moment } from "../core/format.js";
import {
  ask,
  block,
  button,
  facts,
  field,
  input,
  notice,
  panel,
  problem,
  select,
} from "../core/parts.js";
import { link } from "../core/place.js";
import { MAX_SCHEMA_DESCRIPTION } from "../core/vocabulary.js";

/** Its panel; `done` is called with its name when it was changed, with none when it was deleted. */
export function schema(api, name, done, signal) {
  const path = `/schemas/${encodeURIComponent(name)}`;
  const here = h("div", h("p.empty", "Reading…"));
  api.get(path, {}, signal).then(
    (found) => fill(here, detail(api, path, found, done, signal)),
    (error) => !isAborted(error) && problem(here, error),
  );
  return here;
}

function detail(api, path, found, done, signal) {
  const isBuiltIn = found.version === 0;
  const mayChange = !isBuiltIn && api.can("PUT /schemas/{name}");
  async function remove() {
    if (!(await ask(`Delete the schema ${found.name} with all its versions?`, "Delete"))) return;
    await api.send("DELETE", path);
    notice(`Deleted: ${found.name}`);
    await done("");
  }
  const rules = found.rules.map((id) => h("a", { href: link("rules", id) }, id));
  return panel(
    found.name,
    { class: "detail", actions: mayChange && button("Delete", remove, { kind: "danger" }) },
    facts([
      ["Type", found.type],
      ["Version", isBuiltIn ? "built in" : found.version],
      ["Made", moment(found.created_at)],
      found.message_types.length > 0 && ["Messages", found.message_types.join(", ")],
      ["Rules", rules.length ? rules.flatMap((one) => [one, " "]) : "no rule decodes by it"],
    ]),
    found.description && h("p", found.description),
    mayChange && change(api, path, found, done).element,
    !isBuiltIn && (mayChange ? versions(api, path, found, signal) : text(found)),
  );
}

/** The form that makes another version. */
function change(api, path, found, done) {
  const source = area({ class: "code", rows: 12, required: true, value: found.source });
  const message = input({ value: found.message_type ?? "" });
  const description = input({ value: found.description, maxlength: MAX_SCHEMA_DESCRIPTION });
  async function work() {
    const kept = await api.send("PUT", path, {
      type: found.type,
      source: source.value,
      message_type: (found.type === "protobuf" && message.value.trim()) || null,
      description: description.value,
    });
    notice(`Schema ${kept.name}, version ${kept.version}`);
    await done(kept.name);
  }
  const fields = [
    field("Text", source),
    found.type === "protobuf" && field("Message", message),
    field("What it is", description),
  ];
  return form("Save as a new version", fields, work);
}

/** Earlier versions, to be read. */
function versions(api, path, found, signal) {
  const here = h("div");
  const chosen = select(found.versions.map(String));
  chosen.addEventListener("change", () => {
    api.get(`${path}/versions/${chosen.value}`, {}, signal).then(
      (one) => fill(here, text(one)),
      (error) => !isAborted(error) && problem(here, error),
    );
  });
  return found.versions.length > 1 && h("div.result", field("Show version", chosen), here);
}

function text(one) {
  return block(`Text of version ${one.version}`, indented(one.source));
}
