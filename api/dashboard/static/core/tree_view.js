/** A tree of topics on the screen: the rows that are seen, moved through by mouse and by keyboard. */

import { fill, h, perFrame } from "./dom.js";
import { count, payloadLine, rate } from "./format.js";

const ROW_PIXELS = 32;
const SPARE_ROWS = 8;

export class TreeView {
  #tree;
  #choose;
  #rows = [];
  /** Index of the row that keys act on. */
  #active = 0;
  #isChanged = true;
  /** A button is down, or a finger: rows stay as they are, for a click ends on the row that it began on. */
  #isHeld = false;
  #spacer = h("div.tree-rows");
  /** Name of the topic that is looked at; empty for none. */
  chosen;
  element;
  /** Draw at the next frame. */
  draw = perFrame(() => this.#draw());

  /**
   * @param {TopicTree} tree
   * @param {string} chosen
   * @param {function(string)} choose Called with the name of a topic that somebody picks.
   */
  constructor(tree, chosen, choose) {
    this.#tree = tree;
    this.#choose = choose;
    this.chosen = chosen;
    const on = {
      scroll: this.draw,
      keydown: (event) => this.#onKey(event),
      focus: this.draw,
      pointerdown: () => this.#hold(),
    };
    const props = { role: "tree", tabindex: 0, "aria-label": "Topics", on };
    this.element = h("div.tree", props, this.#spacer);
  }

  /** Take note that rows have come or gone. */
  change() {
    this.#isChanged = true;
  }

  #hold() {
    this.#isHeld = true;
    const over = new AbortController();
    const release = () => {
      over.abort();
      this.#isHeld = false;
      this.draw();
    };
    for (const end of ["pointerup", "pointercancel"]) {
      window.addEventListener(end, release, { signal: over.signal });
    }
  }

  #draw() {
    if (this.#isHeld) return;
    if (this.#isChanged) {
      this.#rows = this.#tree.rows();
      this.#isChanged = false;
      this.#active = Math.min(this.#active, Math.max(this.#rows.length - 1, 0));
    }
    const { scrollTop, clientHeight } = this.element;
    this.#spacer.style.height = `${this.#rows.length * ROW_PIXELS}px`;
    const first = Math.max(Math.floor(scrollTop / ROW_PIXELS) - SPARE_ROWS, 0);
    const seen = Math.ceil(clientHeight / ROW_PIXELS) + 2 * SPARE_ROWS;
    const shown = this.#rows.slice(first, first + seen);
    fill(
      this.#spacer,
      shown.map((node, index) => this.#row(node, first + index)),
    );
    if (this.#rows.length)
      this.element.setAttribute("aria-activedescendant", `row-${this.#active}`);
    else this.element.removeAttribute("aria-activedescendant");
  }

  #row(node, index) {
    const topic = node.topic === null ? null : this.#tree.topic(node.topic);
    const hasMore = node.children.size > 0;
    const props = {
      id: `row-${index}`,
      role: "treeitem",
      "aria-level": node.depth,
      "aria-setsize": node.place[1],
      "aria-posinset": node.place[0],
      "aria-selected": String(node.topic !== null && node.topic === this.chosen),
      "aria-expanded": hasMore ? String(node.isOpen) : undefined,
      class: index === this.#active ? "active" : "",
      on: { click: (event) => this.#onClick(event, node, index) },
    };
    const twist = hasMore ? (node.isOpen ? "▾" : "▸") : "";
    const speed = topic?.rate >= 0.05 ? `${rate(topic.rate)}/s` : count(topic?.messages);
    const element = h(
      "div.tree-row",
      props,
      h("span.twist", { "aria-hidden": "true" }, twist),
      h("span.level", node.level || "(empty)"),
      hasMore && h("span.below", topics(node.topics)),
      topic && [h("span.value", payloadLine(topic.last)), h("span.rate", speed)],
    );
    element.style.top = `${index * ROW_PIXELS}px`;
    element.style.setProperty("--depth", node.depth - 1);
    return element;
  }

  #onClick(event, node, index) {
    this.#active = index;
    const isTwist = node.topic === null || event.target.closest(".twist");
    if (node.children.size && isTwist) this.#toggle(node, !node.isOpen);
    else this.#choose(node.topic);
    this.draw();
  }

  #onKey(event) {
    const node = this.#rows[this.#active];
    if (!node) return;
    const steps = this.#steps();
    if (event.key in steps) this.#moveTo(this.#active + steps[event.key]);
    else if (event.key === "ArrowRight" && node.children.size) {
      if (node.isOpen) this.#moveTo(this.#active + 1);
      else this.#toggle(node, true);
    } else if (event.key === "ArrowLeft") {
      if (node.isOpen && node.children.size) this.#toggle(node, false);
      else if (node.parent?.parent) this.#moveTo(this.#rows.indexOf(node.parent));
    } else if (event.key === "Enter" || event.key === " ") {
      if (node.topic !== null) this.#choose(node.topic);
      else this.#toggle(node, !node.isOpen);
    } else return;
    event.preventDefault();
    this.draw();
  }

  /** By how many rows a key moves. */
  #steps() {
    const page = Math.max(Math.floor(this.element.clientHeight / ROW_PIXELS) - 1, 1);
    return {
      ArrowDown: 1,
      ArrowUp: -1,
      PageDown: page,
      PageUp: -page,
      Home: -this.#active,
      End: this.#rows.length - 1 - this.#active,
    };
  }

  #moveTo(index) {
    this.#active = Math.min(Math.max(index, 0), this.#rows.length - 1);
    const top = this.#active * ROW_PIXELS;
    const { element: view } = this;
    if (top < view.scrollTop) view.scrollTop = top;
    else if (top + ROW_PIXELS > view.scrollTop + view.clientHeight) {
      view.scrollTop = top + ROW_PIXELS - view.clientHeight;
    }
  }

  #toggle(node, isOpen) {
    node.isOpen = isOpen;
    this.change();
  }
}

/** A number of topics in words. */
export function topics(number) {
  return number === 1 ? "1 topic" : `${count(number)} topics`;
}
