/** Topics as a tree: levels with what is below them. It knows no page. */

import { MAX_TOPICS } from "./vocabulary.js";

const FEW_TOPICS = 60;

export class TopicTree {
  #root = branch(null, "", "");
  #topics = new Map();
  #names = new Intl.Collator("en", { numeric: true });

  get size() {
    return this.#topics.size;
  }

  topic(name) {
    return this.#topics.get(name) ?? null;
  }

  /**
   * Take what is known of a topic; return whether a row comes or goes.
   *
   * @param {string} name
   * @param {Object} known `last` (a message), and `messages` and `rate` where they are counted.
   */
  put(name, known) {
    const before = this.#topics.get(name);
    if (before) {
      // At the end of the map: who is silent longest stands first in it.
      this.#topics.delete(name);
      this.#topics.set(name, Object.assign(before, known));
      return false;
    }
    // The API remembers no more either; the ones longest silent go first.
    if (this.#topics.size >= MAX_TOPICS) this.#forget();
    this.#topics.set(name, { messages: 0, rate: 0, ...known });
    let at = this.#root;
    for (const level of name.split("/")) {
      at.topics += 1;
      let next = at.children.get(level);
      if (!next) {
        next = branch(at, level, at.parent ? `${at.path}/${level}` : level);
        // Few topics are all to be seen; of many the first level.
        next.isOpen = next.depth < 2 || this.#topics.size <= FEW_TOPICS;
        at.children.set(level, next);
        at.sorted = null;
      }
      at = next;
    }
    at.topics += 1;
    at.topic = name;
    return true;
  }

  clear() {
    this.#root = branch(null, "", "");
    this.#topics.clear();
  }

  /** Return the rows that are to be seen, in order. */
  rows() {
    const found = [];
    const walk = (at) => {
      at.sorted ??= [...at.children.values()].sort((one, other) =>
        this.#names.compare(one.level, other.level),
      );
      at.sorted.forEach((child, index) => {
        child.place = [index + 1, at.sorted.length];
        found.push(child);
        if (child.isOpen && child.children.size) walk(child);
      });
    };
    walk(this.#root);
    return found;
  }

  #forget() {
    const [oldest] = this.#topics.keys();
    this.#topics.delete(oldest);
    let at = this.#root;
    const way = [at];
    for (const level of oldest.split("/")) {
      at = at.children.get(level);
      way.push(at);
    }
    at.topic = null;
    for (const [index, one] of way.entries()) {
      one.topics -= 1;
      if (index > 0 && one.topics === 0) {
        way[index - 1].children.delete(one.level);
        way[index - 1].sorted = null;
        break;
      }
    }
  }
}

function branch(parent, level, path) {
  return {
    parent,
    level,
    path,
    depth: parent ? parent.depth + 1 : 0,
    children: new Map(),
    /** Children by name; null: to be made anew. */
    sorted: null,
    /** Topics here and below. */
    topics: 0,
    /** Name of the topic that ends here; null without one. */
    topic: null,
    isOpen: false,
    place: [1, 1],
  };
}
