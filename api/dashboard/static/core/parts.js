/** What pages are put together from: panels, tables, fields, tabs, questions. */

import { isAborted, words } from "./api.js";
import { fill, freshId, h, isPlain } from "./dom.js";

/** A section with a heading; before what is in it come `class` and `actions`, if any. */
export function panel(title, ...children) {
  const options = isPlain(children[0]) ? children.shift() : {};
  const id = freshId();
  return h(
    "section.panel",
    { "aria-labelledby": id, class: options.class },
    h("header", h("h2", { id }, title), h("div.actions", options.actions)),
    ...children,
  );
}

/** A number with its name; `say` on the value changes it. */
export function tile(label, unit = "") {
  const value = h("dd", "–");
  return {
    element: h("div.tile", h("dt", label, unit && h("small", ` ${unit}`)), value),
    value,
  };
}

/** A word with a colour: the word says it, the colour helps. Kinds: good, warn, bad, idle. */
export function badge(text, kind = "idle") {
  return h(`span.badge.${kind}`, text);
}

const STATES = {
  running: "good",
  serving: "good",
  succeeded: "good",
  connected: "good",
  starting: "warn",
  waiting: "warn",
  draining: "warn",
  paused: "bad",
  failed: "bad",
  interrupted: "bad",
};

/** The badge of a state of a rule, job, gateway or client. */
export function stateBadge(state) {
  return badge(state, STATES[state]);
}

/**
 * A button that cannot be pressed again while it works; what goes wrong is said by `report`.
 *
 * @param {string} label
 * @param {function(): any} work
 * @param {Object} [options] `kind` (`primary`, `danger`, `quiet`), `report` (an element for what
 *   goes wrong; else a notice), `title`, `name` (what it is called where the label says too little).
 */
export function button(label, work, options = {}) {
  const element = h(
    "button",
    {
      type: "button",
      class: options.kind,
      title: options.title,
      "aria-label": options.name,
      on: {
        click: async () => {
          element.disabled = true;
          try {
            if (options.report) fill(options.report);
            await work();
          } catch (error) {
            if (!isAborted(error)) problem(options.report, error);
          } finally {
            element.disabled = false;
          }
        },
      },
    },
    label,
  );
  return element;
}

/** Do something; a place of the page says what went wrong with it, nothing when it went well. */
export async function attempt(place, work) {
  try {
    await work();
    fill(place);
  } catch (error) {
    if (!isAborted(error)) problem(place, error);
  }
}

/** Say what went wrong: in a place of the page, or as a notice. */
export function problem(place, error) {
  if (place) fill(place, h("p.problem", { role: "alert" }, words(error)));
  else notice(words(error), "bad");
}

const notices = h("div.notices", { role: "status", "aria-live": "polite" });

/** Say something at the edge of the page, for a while. */
export function notice(text, kind = "good") {
  if (!notices.isConnected) document.body.append(notices);
  const one = h(`p.notice.${kind}`, text);
  notices.append(one);
  while (notices.childElementCount > 4) notices.firstChild.remove();
  setTimeout(() => one.remove(), kind === "bad" ? 10_000 : 5_000);
}

/** A field for a name: of a topic, a client. */
export function input(props = {}) {
  return h("input", { type: "text", spellcheck: "false", autocapitalize: "off", ...props });
}

/** A labelled control. */
export function field(label, control, hint = "") {
  const id = (control.id ||= freshId());
  const hintId = `${id}-hint`;
  if (hint) control.setAttribute("aria-describedby", hintId);
  return h(
    "div.field",
    h("label", { for: id }, label),
    control,
    hint && h("p.hint", { id: hintId }, hint),
  );
}

/** A labelled check box. */
export function check(label, props = {}) {
  const box = h("input", { type: "checkbox", ...props });
  const element = h("label.check", box, label);
  return { element, box };
}

/** A select of texts, or of `[value, label]`. */
export function select(options, props = {}) {
  const { value, ...others } = props;
  const element = h(
    "select",
    others,
    options.map((option) => {
      const [key, label] = Array.isArray(option) ? option : [option, option];
      return h("option", { value: key }, label);
    }),
  );
  if (value !== undefined) element.value = value;
  return element;
}

/**
 * A table.
 *
 * @param {string} caption For those who hear it.
 * @param {Array<{label: string, cell: function(Object): any, class: string}>} columns
 * @param {Object} [options] `empty`: what is said without rows; `open`: called with the item of a
 *   row whose button is pressed (the first column becomes one); `key`: tells an item.
 */
export function table(caption, columns, options = {}) {
  const body = h("tbody");
  const texts = new WeakMap();
  const empty = h("p.empty", { hidden: true }, options.empty ?? "There is nothing here.");
  const heads = columns.map((one) => h("th", { scope: "col", class: one.class }, one.label));
  const element = h(
    "div.scroll",
    { tabindex: 0, role: "region", "aria-label": caption },
    h("table", h("thead", h("tr", heads)), body),
    empty,
  );
  const make = (item) => tableRow(item, columns, options);

  /** Show these items. Rows of items that are as they were stay, with their focus and selection. */
  function show(items) {
    const focusAgain = focusIn(body, options.key);
    const known = new Map([...body.rows].map((one) => [texts.get(one), one]));
    const wanted = items.map((item) => {
      const text = JSON.stringify(item);
      const same = known.get(text);
      if (known.delete(text)) return same;
      const made = make(item);
      texts.set(made, text);
      return made;
    });
    arrange(body, wanted);
    empty.hidden = items.length > 0;
    focusAgain();
  }
  return { element, show, add: (items) => body.append(...items.map(make)) };
}

function tableRow(item, columns, { open, key }) {
  const cells = columns.map((column, index) => {
    const shown = column.cell(item);
    if (index > 0) return h("td", { class: column.class }, shown);
    const on = { click: () => open(item) };
    const content = open ? h("button.link", { type: "button", on }, shown) : shown;
    return h("th", { scope: "row", class: column.class }, content);
  });
  return h("tr", { data: key ? { key: key(item) } : {} }, cells);
}

/** Have these rows in a body, and no others; those that stay are not moved: that would take their focus away. */
function arrange(body, wanted) {
  const stays = new Set(wanted);
  wanted.forEach((one, index) => {
    const now = body.rows[index];
    if (now === one) return;
    if (now && !stays.has(now)) now.replaceWith(one);
    else body.insertBefore(one, now ?? null);
  });
  while (body.rows.length > wanted.length) body.lastChild.remove();
}

/** Return a function that gives the focus to what has it now, in the row that has taken the place of its row. */
function focusIn(body, key) {
  const { activeElement: focused } = document;
  const row = body.contains(focused) ? focused.closest("tr") : null;
  const controls = (one) => [...one.querySelectorAll("button, input, a")];
  const at = row ? controls(row).indexOf(focused) : -1;
  return () => {
    if (!key || !row || row.isConnected) return;
    const again = [...body.rows].find((one) => one.dataset.key === row.dataset.key);
    if (again) controls(again)[at]?.focus();
  };
}

/** Text as it came, to be read. */
export function block(label, text) {
  return h("pre.payload", { tabindex: 0, "aria-label": label }, text);
}

/** Names with values. */
export function facts(pairs) {
  return h(
    "dl.facts",
    pairs
      .filter((pair) => pair)
      .map(([name, value]) => h("div", h("dt", name), h("dd", value ?? "–"))),
  );
}

/**
 * Tabs, moved between by arrow keys as WAI-ARIA has it.
 *
 * @param {Array<{label: string, make: function(): Node}>} pages Made when they are shown first.
 */
export function tabs(label, pages) {
  const made = pages.map(() => null);
  const id = freshId();
  const place = h("div.tabpanel", { role: "tabpanel", id: `${id}-panel`, tabindex: 0 });
  const heads = pages.map((page, index) => {
    const on = { click: () => show(index), keydown: (event) => move(event, index) };
    const names = { role: "tab", id: `${id}-${index}`, "aria-controls": place.id };
    return h("button", { type: "button", ...names, on }, page.label);
  });

  function show(index) {
    made[index] ??= pages[index].make();
    fill(place, made[index]);
    place.setAttribute("aria-labelledby", heads[index].id);
    heads.forEach((head, other) => {
      head.setAttribute("aria-selected", String(other === index));
      head.tabIndex = other === index ? 0 : -1;
    });
  }
  function move(event, index) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -index, End: heads.length - 1 - index };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const next = (index + steps[event.key] + heads.length) % heads.length;
    show(next);
    heads[next].focus();
  }
  show(0);
  const list = h("div.tablist", { role: "tablist", "aria-label": label }, heads);
  return { element: h("div.tabs", list, place), show };
}

/** Ask a question that has a yes, with a field if there is something to say; resolve to whether it was given. */
export function ask(question, yes, kind = "danger", said = null) {
  const id = freshId();
  return new Promise((resolve) => {
    const close = () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    };
    const no = h("button", { value: "no", type: "button", autofocus: !said }, "Cancel");
    no.addEventListener("click", () => dialog.close("no"));
    const answers = h("div.actions", no, h("button", { value: "yes", class: kind }, yes));
    const asked = h("form", { method: "dialog" }, h("p", { id }, question), said, answers);
    const dialog = h("dialog", { "aria-labelledby": id, on: { close } }, asked);
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** A page's heading, which has the focus when the page opens. */
export function heading(title, ...beside) {
  return h("div.heading", h("h1", { tabindex: -1 }, title), h("div.actions", beside));
}
