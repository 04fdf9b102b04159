/** A list that the API gives by pages: a table, a button for more, what goes wrong. */

import { isAborted } from "./api.js";
import { fill, h } from "./dom.js";
import { button, problem } from "./parts.js";

/**
 * @param {Object} shown A `table`.
 * @param {function(?string, AbortSignal): Promise<Object>} read Asks for the page at a cursor, the
 *   first one at null; gives `items` and `next_cursor`.
 * @param {AbortSignal} signal Ends it.
 * @returns {{elements: Node[], wrong: Node, load: function(): Promise, restart: function(): Promise}}
 *   `load` reads anew all pages that are shown, `restart` the first one alone; either ends what is
 *   being read.
 */
export function pagedList(shown, read, signal) {
  const wrong = h("div");
  let pages = 1;
  let asking = new AbortController();
  signal.addEventListener("abort", () => asking.abort());
  const turn = (wanted) => {
    pages = wanted;
    return load();
  };
  const more = button("More", () => turn(pages + 1));
  more.hidden = true;

  async function load() {
    asking.abort();
    asking = new AbortController();
    const { signal: mine } = asking;
    try {
      const items = [];
      let cursor = null;
      for (let page = 0; page < pages; page += 1) {
        const found = await read(cursor, mine);
        items.push(...found.items);
        cursor = found.next_cursor;
        if (!cursor) break;
      }
      shown.show(items);
      more.hidden = !cursor;
      fill(wrong);
    } catch (error) {
      if (!isAborted(error)) problem(wrong, error);
    }
  }
  return { elements: [shown.element, more], wrong, load, restart: () => turn(1) };
}
