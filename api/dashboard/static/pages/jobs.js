/** Jobs: what takes longer than a request. One of them with its result; a replay begins here. */

import { every, fill, h, inTurn } from "../core/dom.js";
import { moment, seconds } from "../core/format.js";
import {
  ask,
  attempt,
  block,
  button,
  facts,
  heading,
  panel,
  stateBadge,
  table,
} from "../core/parts.js";
import { pagedList } from "../core/paged.js";
import { link, note } from "../core/place.js";
import { UNFINISHED } from "../core/vocabulary.js";
import { replay } from "./replay.js";

const REFRESH_MS = 2_000;
const FOLLOW_MS = 1_000;
const PAGE = 100;
const ABOUT =
  "Dry runs, backfills, re-runs of dead letters, replays and deletions. They outlive the API's process; those that have ended are kept for a day.";
const EMPTY =
  "There is no job. Dry runs and backfills begin on the page of a rule, a replay begins below.";
const NONE_CHOSEN = "Choose a job to see how far it is, and what came of it.";

export function mount(context) {
  const { api, signal, place } = context;
  const beside = h("div.beside");
  const shown = jobTable((one) => show(one.id));
  const read = (cursor, mine) => api.get("/jobs", { tenant: null, limit: PAGE, cursor }, mine);
  const list = pagedList(shown, read, signal);
  const follow = inTurn(signal, (mine, id) => {
    note("jobs", id);
    fill(beside, id ? job(api, id, () => show(""), mine) : h("p.empty", NONE_CHOSEN));
  });
  function show(id) {
    follow(id);
    list.load();
  }
  every(REFRESH_MS, signal, list.load);
  follow(place.item);
  const listed = h("section.panel", { "aria-label": "List of jobs" }, list.elements);
  return h(
    "div",
    heading("Jobs and replay"),
    h("p.hint", ABOUT),
    list.wrong,
    h("div.split", listed, beside),
    api.can("POST /replay") && replay(context, (begun) => show(begun.id)),
  );
}

function jobTable(open) {
  const columns = [
    { label: "Job", cell: (one) => one.id },
    { label: "Kind", cell: kindOf },
    { label: "State", cell: (one) => stateBadge(one.state) },
    { label: "Done", cell: (one) => percent(one.progress), class: "number" },
    { label: "Rule", cell: (one) => one.rule_id || "–" },
    { label: "Tenant", cell: (one) => one.tenant },
    { label: "Begun", cell: (one) => moment(one.created_at) },
  ];
  return table("Jobs", columns, { empty: EMPTY, open, key: (one) => one.id });
}

/** One job, followed until a signal ends it; `forgotten` is called when there is no such job any more. */
function job(api, id, forgotten, signal) {
  const about = h("div");
  const buttons = h("span.actions");
  const result = h("div");
  const wrong = h("div");
  let state = "";
  async function read() {
    const found = await api.get(`/jobs/${id}`, { tenant: null }, signal);
    fill(about, factsOf(found));
    if (found.state === state) return;
    state = found.state;
    const isFocused = buttons.contains(document.activeElement);
    fill(buttons, endings(api, found, again, forgotten));
    if (isFocused) buttons.querySelector("button")?.focus();
    fill(result, outcome(found));
  }
  const again = () => attempt(wrong, read);
  every(FOLLOW_MS, signal, again);
  return panel(`Job ${id}`, { class: "detail", actions: buttons }, about, wrong, result);
}

function factsOf(found) {
  const rule = found.rule_id;
  return facts([
    ["Kind", kindOf(found)],
    ["State", stateBadge(found.state)],
    ["Done", percent(found.progress)],
    found.note && ["Doing", found.note],
    rule && ["Rule", h("a", { href: link("rules", rule) }, rule)],
    ["Tenant", found.tenant],
    ["Begun", moment(found.created_at)],
    ["Ended", moment(found.finished_at)],
    ["Ran for", seconds(found.seconds)],
  ]);
}

/** The buttons that end a job, go on with it or forget it; each for who may. */
function endings(api, { id, state }, again, forgotten) {
  const path = `/jobs/${id}`;
  const remove = () => api.send("DELETE", path, undefined, { tenant: null });
  const end = async () => {
    if (!(await ask(`End the job ${id}?`, "End it"))) return;
    await remove();
    await again();
  };
  const resume = async () => {
    await api.send("POST", `${path}/resume`, undefined, { tenant: null });
    await again();
  };
  const forget = async () => {
    await remove();
    forgotten();
  };
  const mayEnd = api.can("DELETE /jobs/{id}");
  if (UNFINISHED.includes(state)) return mayEnd && button("End it", end, { kind: "danger" });
  const mayResume = state !== "succeeded" && api.can("POST /jobs/{id}/resume");
  return [mayResume && button("Go on", resume), mayEnd && button("Forget", forget)];
}

function outcome(found) {
  if (found.error) return h("p.problem", { role: "alert" }, found.error);
  return found.result && block("Result", JSON.stringify(found.result, null, 2));
}

function kindOf(found) {
  return found.kind.replaceAll("_", " ");
}

function percent(progress) {
  return `${Math.floor(progress * 100)} %`;
}
