/** What the API is asked for again and again, as long as it is looked at. */

import { isAborted } from "./api.js";
import { every, fill, h } from "./dom.js";
import { problem } from "./parts.js";

/**
 * @param {number} milliseconds Between two answers.
 * @param {AbortSignal} signal Ends it.
 * @param {function(): Promise} read
 * @param {function(any): Node} draw Called with an answer that differs from the last one, not while something of what
 *   was drawn has the focus.
 * @returns {HTMLElement}
 */
export function followed(milliseconds, signal, read, draw) {
  const here = h("div");
  let known = "";
  every(milliseconds, signal, async () => {
    try {
      const found = await read();
      const text = JSON.stringify(found);
      if (text === known || here.contains(document.activeElement)) return;
      known = text;
      fill(here, draw(found));
    } catch (error) {
      if (isAborted(error)) return;
      known = "";
      problem(here, error);
    }
  });
  return here;
}
