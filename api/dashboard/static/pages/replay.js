/** Send stored messages once more: to all who subscribe, or to one client. */

import { h } from "../core/dom.js";
import { editor } from "../core/editor.js";
import { form } from "../core/form.js";
import { count } from "../core/format.js";
import { check, field, input, notice, panel, select } from "../core/parts.js";
import { REPLAY_CLIENT_RATE, REPLAY_RATE } from "../core/vocabulary.js";

const FIRST =
  "SELECT * FROM messages\nWHERE topic_matches(topic, 'plant/#') AND ts > now() - INTERVAL 1 HOUR";
const SPEEDS = [
  ["", "As fast as the rate allows"],
  ["1", "As it was"],
  ["10", "Ten times as fast"],
  ["100", "A hundred times as fast"],
];
const ABOUT =
  "Published messages are new ones: rules and the history take them, and user properties say what they are of. To one client that is connected they go as they were, and nothing is published.";

/** The panel; `begun` is called with the job. */
export function replay({ api }, begun) {
  api.startSpark();
  const query = editor({ label: "Messages to replay", rows: 4, value: FIRST });
  const target = targetFields();
  async function work() {
    query.mark([]);
    try {
      const asked = { query: query.value, ...target.read() };
      const job = await api.send("POST", "/replay", asked);
      notice(`Replay ${job.id} has begun.`);
      begun(job);
    } catch (error) {
      if (!error.body?.line) throw error;
      query.mark([{ problem: error.message, ...error.body }]);
    }
  }
  const starting = form("Replay", [query.element, target.element], work);
  return panel("Replay messages", h("p.hint", ABOUT), starting.element);
}

/** To whom, how fast, how many; `read` gives these members of the request. */
function targetFields() {
  const prefix = input({ value: "replay/" });
  const client = input();
  const speed = select(SPEEDS);
  const rate = number(`${count(REPLAY_RATE)}, to one client ${count(REPLAY_CLIENT_RATE)}`);
  const limit = number("all");
  const retain = check("Replace what is retained now");
  const element = h(
    "div.row",
    field("Prefix of topics", prefix),
    field("Only to this client", client),
    field("Time between messages", speed),
    field("Messages a second, at most", rate),
    field("Only the earliest", limit),
    retain.element,
  );
  const read = () => ({
    prefix: client.value ? "" : prefix.value,
    client_id: client.value || null,
    speed: numberOf(speed),
    rate: numberOf(rate),
    limit: numberOf(limit),
    keep_retain: retain.box.checked,
  });
  return { element, read };
}

function number(placeholder) {
  return h("input", { type: "number", min: 1, placeholder });
}

function numberOf({ value }) {
  return value ? Number(value) : null;
}
