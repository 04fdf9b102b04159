/** A tour for somebody who has not been here before: four steps, each at a page. */

import { fill, freshId, h } from "../core/dom.js";
import { button } from "../core/parts.js";
import { go } from "../core/place.js";

const KEY = "mqlake.tour";
const OVER = "over";
const STEPS = [
  {
    page: "overview",
    title: "The system at a glance",
    text: "Messages in, stored and out each second, the delay through each stage, and every process. Alarms in the navigation counts what wants somebody to look.",
  },
  {
    page: "topics",
    title: "Your first message",
    text: "Each topic appears here with its last value as soon as something is published to it. Any MQTT client will do; the page MQTT client is one.",
  },
  {
    page: "rules",
    title: "Let something happen",
    text: "A rule is a SELECT over messages with actions: publish again, write a table, call a web server. The editor tries it on one message and on the history before it runs.",
  },
  {
    page: "sql",
    title: "Ask the history",
    text: "Every message is a row of the table messages, some seconds after it came. Ask it here, as a table or a chart, and save the answer.",
  },
];

/** Tell whether the tour was never ended in this browser. */
export function isNew() {
  return localStorage.getItem(KEY) !== OVER;
}

/**
 * Show the tour over the pages that are there; it ends by its buttons, by Escape or with a signal.
 *
 * @param {string[]} pages Names of those that may be opened.
 * @param {AbortSignal} signal
 */
export function showTour(pages, signal) {
  const steps = STEPS.filter((one) => pages.includes(one.page));
  const id = freshId();
  const element = h("aside.tour", { role: "dialog", "aria-labelledby": id, tabindex: -1 });
  function end() {
    localStorage.setItem(KEY, OVER);
    element.remove();
  }
  function show(at) {
    if (at === steps.length) return end();
    go(steps[at].page);
    fill(element, step(steps, at, id, show, end));
    element.focus();
    return null;
  }
  element.addEventListener("keydown", (event) => event.key === "Escape" && end());
  signal.addEventListener("abort", () => element.remove());
  document.body.append(element);
  if (steps.length) show(0);
}

function step(steps, at, id, show, end) {
  const isLast = at === steps.length - 1;
  return [
    h("p.hint", `Step ${at + 1} of ${steps.length}`),
    h("h2", { id }, steps[at].title),
    h("p", steps[at].text),
    h(
      "div.actions",
      button(isLast ? "Done" : "Next", () => show(at + 1), { kind: "primary" }),
      at > 0 && button("Back", () => show(at - 1)),
      !isLast && button("End the tour", end, { kind: "quiet" }),
    ),
  ];
}
