/** What wants somebody to look, kept by the API; what rules give out, as it comes, and what they fail on. */

import { atMost, every, fill, h, inTurn, say } from "../core/dom.js";
import { cell, count, moment } from "../core/format.js";
import {
  ask,
  attempt,
  badge,
  button,
  field,
  heading,
  input,
  panel,
  select,
  table,
} from "../core/parts.js";
import { pagedList } from "../core/paged.js";
import { link } from "../core/place.js";
import { MAX_LIMIT, MAX_NOTE } from "../core/vocabulary.js";

const REFRESH_MS = 5_000;
const PAGE = 200;
const MOST_OUTPUTS = 200;
const DRAW_MS = 200;
const MOST_LETTERS = 50;
const LETTERS_MS = 30_000;
const MOST_RATE = 50;

export function mount(context) {
  return h(
    "div",
    heading("Alarms"),
    openAlarms(context),
    outputs(context),
    deadLetters(context),
    pastAlarms(context),
  );
}

/** What is wrong now; somebody who looks after it says so. */
function openAlarms({ api, signal }) {
  const untold = h("div");
  const list = pagedList(alarmTable(api, acknowledge, withdraw), read, signal);
  async function read(cursor, mine) {
    const found = await api.get("/alarms", { tenant: null, limit: PAGE, cursor }, mine);
    fill(untold, Object.entries(found.problems).map(notTold));
    return found;
  }
  const path = (one) => `/alarms/${one.id}/acknowledge`;
  async function acknowledge(one) {
    const note = input({ maxlength: MAX_NOTE });
    const question = `You look after this: ${one.what}. Nobody else is told of it.`;
    if (!(await ask(question, "Acknowledge", "primary", field("Note for the others", note))))
      return;
    await api.send("POST", path(one), { note: note.value }, { tenant: null });
    await list.load();
  }
  async function withdraw(one) {
    await api.send("DELETE", path(one), undefined, { tenant: null });
    await list.load();
  }
  every(REFRESH_MS, signal, list.load);
  return panel("Open now", untold, list.wrong, ...list.elements);
}

function notTold([channel, reason]) {
  return h("p.problem", `Nobody is told by ${channel}: ${reason}`);
}

const WHAT = { label: "What", cell: (one) => h("a", { href: link(one.page, one.item) }, one.what) };
const SEVERITY = {
  label: "How bad",
  cell: ({ severity }) => badge(severity, severity === "alarm" ? "bad" : "warn"),
};
const WHY = { label: "Why", cell: (one) => one.detail, class: "wide" };
const TENANT = { label: "Tenant", cell: (one) => one.tenant ?? "–" };
const RAISED = { label: "Raised", cell: (one) => moment(one.raised_at) };

function alarmTable(api, acknowledge, withdraw) {
  const mayAcknowledge = api.can("POST /alarms/{id}/acknowledge");
  const looked = (one) => {
    const name = (what) => ({ kind: "quiet", name: `${what}: ${one.what}` });
    if (one.state === "open") {
      const work = () => acknowledge(one);
      return mayAcknowledge && button("Acknowledge", work, name("Acknowledge"));
    }
    const note = one.note && `: ${one.note}`;
    const work = () => withdraw(one);
    const undo = mayAcknowledge && button("Undo", work, name("Undo the acknowledgement"));
    return h("span", `${one.acknowledged_by}, ${moment(one.acknowledged_at)}`, note, undo);
  };
  const columns = [WHAT, SEVERITY, WHY, TENANT, RAISED, { label: "Acknowledged", cell: looked }];
  return table("Open alarms", columns, { empty: "Nothing is wrong.", key: (one) => one.id });
}

/** What was wrong in the last week; read when somebody wants to see it. */
function pastAlarms({ api, signal }) {
  const times = (one) => (one.times > 1 ? `${count(one.times)} times` : "once");
  const columns = [
    WHAT,
    SEVERITY,
    WHY,
    TENANT,
    RAISED,
    { label: "Cleared", cell: (one) => moment(one.cleared_at) },
    { label: "How often", cell: times },
  ];
  const shown = table("Alarms that are over", columns, {
    empty: "Nothing was wrong in the last week.",
  });
  const asked = { tenant: null, state: "cleared", limit: PAGE };
  const read = (cursor, mine) => api.get("/alarms", { ...asked, cursor }, mine);
  const list = pagedList(shown, read, signal);
  const toggle = (event) => event.target.open && list.load();
  const summary = h("summary", "Alarms that are over");
  const over = h("details", { on: { toggle } }, summary, list.wrong, list.elements);
  return h("section.panel", { "aria-label": "Alarms that are over" }, over);
}

/** What rules give out from now on, the newest first: detections, say. */
function outputs({ api, live, signal }) {
  const kept = [];
  const left = h("p.hint", { role: "status" }, "");
  const rule = select([["", "All rules"]]);
  const list = outputTable();
  const draw = atMost(DRAW_MS, () => list.show(kept));
  function take(event, data) {
    if (event === "output") {
      kept.unshift(data);
      kept.length = Math.min(kept.length, MOST_OUTPUTS);
      draw();
    } else if (event === "left_out") {
      say(left, `${count(data.total)} were left out: more than ${MOST_RATE} a second.`);
    }
  }
  const follow = inTurn(signal, (mine) => {
    kept.length = 0;
    draw();
    const rule_id = rule.value || null;
    const asked = { stream: "outputs", tenant: api.tenant, rule_id, max_rate: MOST_RATE };
    live.follow(asked, take, mine);
  });
  rule.addEventListener("change", () => follow());
  api.get("/rules", { limit: MAX_LIMIT }, signal).then(
    (found) => rule.append(...found.items.map((one) => h("option", { value: one.id }, one.id))),
    () => {},
  );
  follow();
  return panel("What rules give out", h("div.row", field("Rule", rule)), left, list.element);
}

function outputTable() {
  const columns = [
    { label: "Rule", cell: (one) => one.rule_id },
    { label: "When", cell: (one) => moment(one.received_at) },
    { label: "Topic", cell: (one) => one.topic_name },
    { label: "Row", cell: (one) => cell(one.row), class: "wide code" },
  ];
  const empty = [
    "Nothing since this page was opened. What ",
    h("a", { href: link("rules") }, "rules"),
    " give out appears here as it comes.",
  ];
  return table("What rules give out", columns, { empty });
}

/** Messages that rules have failed on. */
function deadLetters({ api, signal }) {
  const wrong = h("div");
  const columns = [
    { label: "Rule", cell: (one) => h("a", { href: link("rules", one.rule_id) }, one.rule_id) },
    { label: "When", cell: (one) => moment(one.given_up_at) },
    { label: "Stage", cell: (one) => one.stage },
    { label: "Topic", cell: (one) => one.topic },
    { label: "Error", cell: (one) => one.error, class: "wide" },
  ];
  const list = table("Dead letters", columns, { empty: "No rule has failed on a message." });
  every(LETTERS_MS, signal, () =>
    attempt(wrong, async () => {
      const asked = { open: true, limit: MOST_LETTERS };
      list.show((await api.get("/dead_letters", asked, signal)).items);
    }),
  );
  return panel("Messages that rules could not handle", wrong, list.element);
}
