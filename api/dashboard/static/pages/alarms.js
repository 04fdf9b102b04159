/** What wants somebody to look: parts of the system, rules, jobs; and what rules give out, as it comes. */

import { isAborted } from "../core/api.js";
import { alarmsOf } from "../core/alarms.js";
import { atMost, every, h, perFrame, say } from "../core/dom.js";
import { cell, count, moment } from "../core/format.js";
import { badge, field, heading, panel, problem, select, table } from "../core/parts.js";
import { link } from "../core/place.js";

const REFRESH_MS = 5_000;
const MOST_OUTPUTS = 200;
const DRAW_MS = 200;
const MOST_LETTERS = 50;
const LETTERS_MS = 30_000;
const MOST_RATE = 50;

export function mount({ api, live, metrics, signal }) {
  let ofRules = [];
  let ofJobs = [];
  const wrong = h("div");
  const list = table(
    "Open alarms",
    [
      { label: "What", cell: (one) => h("a", { href: link(one.page, one.item) }, one.what) },
      {
        label: "How bad",
        cell: (one) => badge(one.kind === "bad" ? "alarm" : "warning", one.kind),
      },
      { label: "Why", cell: (one) => one.detail, class: "wide" },
    ],
    { empty: "Nothing is wrong.", key: (one) => one.what },
  );
  const letters = table(
    "Dead letters",
    [
      { label: "Rule", cell: (one) => h("a", { href: link("rules", one.rule_id) }, one.rule_id) },
      { label: "When", cell: (one) => moment(one.given_up_at) },
      { label: "Stage", cell: (one) => one.stage },
      { label: "Topic", cell: (one) => one.topic },
      { label: "Error", cell: (one) => one.error, class: "wide" },
    ],
    { empty: "No rule has failed on a message." },
  );
  const lettersWrong = h("div");

  const draw = perFrame(() =>
    list.show([...(metrics.latest ? alarmsOf(metrics.latest) : []), ...ofRules, ...ofJobs]),
  );
  let shown = "";
  metrics.watch((data) => {
    // Only when something has changed: a table that is made anew each second cannot be read aloud.
    const now = JSON.stringify(alarmsOf(data));
    if (now === shown) return;
    shown = now;
    draw();
  }, signal);

  every(REFRESH_MS, signal, async () => {
    try {
      const [failed, paused, jobs] = await Promise.all([
        api.get("/rules", { state: "failed", limit: 100 }, signal),
        api.get("/rules", { state: "paused", limit: 100 }, signal),
        api.get("/jobs", { limit: 100 }, signal),
      ]);
      ofRules = [...failed.items, ...paused.items].map((rule) => ({
        kind: "bad",
        what: `rule ${rule.id} is ${rule.state}`,
        detail: rule.error ?? "",
        page: "rules",
        item: rule.id,
      }));
      ofJobs = jobs.items
        .filter((job) => ["failed", "interrupted"].includes(job.state) && job.tenant === api.tenant)
        .map((job) => ({
          kind: "warn",
          what: `${job.kind.replaceAll("_", " ")} ${job.id} ${job.state === "failed" ? "has failed" : "was interrupted"}`,
          detail: job.error ?? job.note,
          page: job.rule_id ? "rules" : "alarms",
          item: job.rule_id,
        }));
      draw();
    } catch (error) {
      if (!isAborted(error)) problem(wrong, error);
    }
  });
  every(LETTERS_MS, signal, async () => {
    try {
      const found = await api.get("/dead_letters", { open: true, limit: MOST_LETTERS }, signal);
      letters.show(found.items);
    } catch (error) {
      if (!isAborted(error)) problem(lettersWrong, error);
    }
  });

  return h(
    "div",
    heading("Alarms"),
    wrong,
    panel("Open now", list.element),
    outputs(api, live, signal),
    panel("Messages that rules could not handle", lettersWrong, letters.element),
  );
}

/** What rules give out from now on, the newest first: detections, say. */
function outputs(api, live, signal) {
  const kept = [];
  const left = h("p.hint", { role: "status" }, "");
  const rule = select([["", "All rules"]]);
  const list = table(
    "What rules give out",
    [
      { label: "Rule", cell: (one) => one.rule_id },
      { label: "When", cell: (one) => moment(one.received_at) },
      { label: "Topic", cell: (one) => one.topic_name },
      { label: "Row", cell: (one) => cell(one.row), class: "wide code" },
    ],
    { empty: "Nothing since this page was opened." },
  );
  const draw = atMost(DRAW_MS, () => list.show(kept));
  let stream = new AbortController();
  signal.addEventListener("abort", () => stream.abort());

  function follow() {
    stream.abort();
    stream = new AbortController();
    kept.length = 0;
    draw();
    live.follow(
      { stream: "outputs", tenant: api.tenant, rule_id: rule.value || null, max_rate: MOST_RATE },
      (event, data) => {
        if (event === "output") {
          kept.unshift(data);
          kept.length = Math.min(kept.length, MOST_OUTPUTS);
          draw();
        } else if (event === "left_out") {
          say(left, `${count(data.total)} were left out: more than ${MOST_RATE} a second.`);
        }
      },
      stream.signal,
    );
  }
  rule.addEventListener("change", follow);
  api.get("/rules", { limit: 1000 }, signal).then(
    (found) => rule.append(...found.items.map((one) => h("option", { value: one.id }, one.id))),
    () => {},
  );
  follow();
  return panel("What rules give out", h("div.row", field("Rule", rule)), left, list.element);
}
