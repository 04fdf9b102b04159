/** Schemas by which rules decode payloads that are not JSON. */

import { fill, h, inTurn } from "../core/dom.js";
import { area, form } from "../core/form.js";
import { moment } from "../core/format.js";
import { field, heading, input, notice, panel, select, table } from "../core/parts.js";
import { pagedList } from "../core/paged.js";
import { note } from "../core/place.js";
import { MAX_SCHEMA_DESCRIPTION } from "../core/vocabulary.js";
import { schema } from "./schema.js";

const PAGE = 200;
const ABOUT =
  "Rules decode payloads of Avro and Protocol Buffers by the schemas that are registered here. Sparkplug B is built in.";
const EMPTY = "There is no schema. Register one below.";
const NONE_CHOSEN =
  "Choose a schema to see its text, its versions and the rules that decode by it.";
const MESSAGE = "Of Protocol Buffers: the message that a payload is; empty: the first one.";
const SOURCE = "Avro: the schema as JSON; Protocol Buffers: the text of a .proto file.";

export function mount({ api, signal, place }) {
  const beside = h("div.beside");
  const shown = schemaTable((one) => show(one.name));
  const read = (cursor, mine) => api.get("/schemas", { limit: PAGE, cursor }, mine);
  const list = pagedList(shown, read, signal);
  const follow = inTurn(signal, (mine, name) => {
    note("schemas", name);
    fill(beside, name ? schema(api, name, show, mine) : h("p.empty", NONE_CHOSEN));
  });
  /** Show a schema that may have changed, or none, and the list anew. */
  function show(name) {
    follow(name);
    return list.load();
  }
  show(place.item);
  const listed = h("section.panel", { "aria-label": "List of schemas" }, list.elements);
  return h(
    "div",
    heading("Schemas"),
    h("p.hint", ABOUT),
    list.wrong,
    h("div.split", listed, beside),
    api.can("POST /schemas") && panel("Register a schema", registration(api, show).element),
  );
}

function schemaTable(open) {
  const columns = [
    { label: "Schema", cell: (one) => one.name },
    { label: "Type", cell: (one) => one.type },
    { label: "Version", cell: (one) => one.version || "built in" },
    { label: "Made", cell: (one) => moment(one.created_at) },
    { label: "What it is", cell: (one) => one.description || "–", class: "wide" },
  ];
  return table("Schemas", columns, { empty: EMPTY, open, key: (one) => one.name });
}

function registration(api, done) {
  const name = input({ required: true });
  const type = select(["avro", "protobuf"]);
  const message = input();
  const description = input({ maxlength: MAX_SCHEMA_DESCRIPTION });
  const source = area({ class: "code", rows: 8, required: true });
  async function work() {
    const made = await api.send("POST", "/schemas", {
      name: name.value.trim(),
      type: type.value,
      source: source.value,
      message_type: message.value.trim() || null,
      description: description.value,
    });
    notice(`Schema ${made.name} is registered.`);
    await done(made.name);
  }
  const named = h(
    "div.row",
    field("Name", name),
    field("Type", type),
    field("What it is", description),
  );
  const fields = [named, field("Text", source, SOURCE), field("Message", message, MESSAGE)];
  return form("Register", fields, work);
}
