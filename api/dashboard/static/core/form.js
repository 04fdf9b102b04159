/** Forms: fields, a button that cannot be pressed again while it works, and what goes wrong. */

import { fill, h } from "./dom.js";
import { attempt } from "./parts.js";

/**
 * @param {string} label Of the button.
 * @param {Array} fields
 * @param {function(): any} work What the button does; what it throws is said below it.
 * @param {Object} [options] `class`: `row` for fields side by side; `beside`: what stands beside the button.
 * @returns {{element: HTMLFormElement, send: function(): Promise}} `send` is what the button calls.
 */
export function form(label, fields, work, options = {}) {
  const wrong = h("div.wrong-with");
  const start = h("button.primary", { type: "submit" }, label);
  async function send() {
    start.disabled = true;
    fill(wrong);
    await attempt(wrong, work);
    start.disabled = false;
  }
  const submit = (event) => {
    event.preventDefault();
    send();
  };
  const buttons = h("div.actions", start, options.beside);
  const element = h(`form.${options.class ?? "form"}`, { on: { submit } }, fields, buttons, wrong);
  return { element, send };
}

/** A text area of some lines. */
export function area(props = {}) {
  return h("textarea", { rows: 3, spellcheck: "false", autocapitalize: "off", ...props });
}

/** Return what stands between separators, trimmed; null for nothing. */
export function listed(text, separator) {
  const found = text
    .split(separator)
    .map((one) => one.trim())
    .filter(Boolean);
  return found.length ? found : null;
}
