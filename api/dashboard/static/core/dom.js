/**
 * Elements without a framework: `h` makes them, `fill` replaces what is in one, `perFrame` keeps
 * changes to one an animation frame. Text is only ever set as text, never as markup.
 */

/** Set as properties: as attributes they would give the first value only. */
const PROPERTIES = new Set([
  "value",
  "checked",
  "disabled",
  "hidden",
  "selected",
  "open",
  "tabIndex",
]);

/**
 * Return a new element.
 *
 * @param {string} tag `p`, or `p.class.other`.
 * @param {Object} [props] Attributes, if a plain object comes first; `on` holds listeners, `data` the dataset. Null, undefined and
 *   false leave an attribute out, true sets it empty; `aria-*` take false as a value.
 * @param {...(Node|string|number|null|false|undefined|Array)} children
 */
export function h(tag, ...children) {
  const props = isPlain(children[0]) ? children.shift() : {};
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(props)) {
    if (key === "on") {
      for (const [event, listener] of Object.entries(value))
        element.addEventListener(event, listener);
    } else if (key === "data") {
      Object.assign(element.dataset, value);
    } else {
      set(element, key, value);
    }
  }
  element.append(...nodes(children));
  return element;
}

/** Tell whether a value is a plain object: options, not what is shown. */
export function isPlain(value) {
  return value?.constructor === Object;
}

/** Set one attribute or property, as `h` does. */
export function set(element, key, value) {
  if (value === undefined) return;
  if (PROPERTIES.has(key)) element[key] = value;
  else if (key === "class") element.classList.add(...String(value).split(" ").filter(Boolean));
  else if (key.startsWith("aria-") && value !== null) element.setAttribute(key, String(value));
  else if (value === null || value === false) element.removeAttribute(key);
  else element.setAttribute(key, value === true ? "" : String(value));
}

/** Replace what is in an element. */
export function fill(element, ...children) {
  element.replaceChildren(...nodes(children));
  return element;
}

/** Set an element's text when it differs: an equal one would be laid out again for nothing. */
export function say(element, text) {
  const wanted = String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

function nodes(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : String(child)));
}

/** Return a function that runs `work` at the next animation frame, however often it is called. */
export function perFrame(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      work();
    });
  };
}

/**
 * As `perFrame`, but not again before so many milliseconds have passed: for what comes faster than
 * eyes can follow.
 */
export function atMost(milliseconds, work) {
  let asked = false;
  let last = -Infinity;
  const frame = perFrame(() => {
    asked = false;
    last = performance.now();
    work();
  });
  return () => {
    if (asked) return;
    asked = true;
    setTimeout(frame, Math.max(0, last + milliseconds - performance.now()));
  };
}

/** Return a function that runs `work` when it has not been called again for a while. */
export function afterPause(milliseconds, work) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...args), milliseconds);
  };
}

/**
 * Do something now and then again and again until a signal ends it, not while the page is hidden.
 *
 * The next time counts from the end of the last: what is slow is not asked twice at once.
 */
export function every(milliseconds, signal, work) {
  let timer = 0;
  const run = async () => {
    if (!document.hidden) await work();
    if (!signal.aborted) timer = setTimeout(run, milliseconds);
  };
  signal.addEventListener("abort", () => clearTimeout(timer));
  run();
}

/** Return a function that does some work until it is called again, or until a signal ends all. */
export function inTurn(signal, work) {
  let now = new AbortController();
  signal.addEventListener("abort", () => now.abort());
  return (...args) => {
    now.abort();
    now = new AbortController();
    return work(now.signal, ...args);
  };
}

let lastId = 0;
/** Return an identifier for `for`, `aria-labelledby` and their like. */
export function freshId() {
  lastId += 1;
  return `id-${lastId}`;
}
