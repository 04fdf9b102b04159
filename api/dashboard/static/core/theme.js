/** Light, dark, or as the system has it. */

const KEY = "mqlake.theme";
const NAMES = ["auto", "light", "dark"];
const root = document.documentElement;
const watchers = new Set();
const probe = document.createElement("i");
probe.hidden = true;

export function theme() {
  return root.dataset.theme ?? "auto";
}

/** Take the next theme; return its name. */
export function nextTheme() {
  const next = NAMES[(NAMES.indexOf(theme()) + 1) % NAMES.length];
  if (next === "auto") {
    delete root.dataset.theme;
    localStorage.removeItem(KEY);
  } else {
    root.dataset.theme = next;
    localStorage.setItem(KEY, next);
  }
  tell();
  return next;
}

/** Be told when colours change: canvases do not follow by themselves. */
export function watchTheme(handle, signal) {
  watchers.add(handle);
  signal.addEventListener("abort", () => watchers.delete(handle));
}

/**
 * Return a colour of the style sheet as a canvas takes it.
 *
 * @param {string} name Of a custom property: `--accent`.
 */
export function colour(name) {
  // A custom property's own value is the text `light-dark(…)`; a colour that uses it is computed.
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

function tell() {
  for (const watcher of watchers) watcher();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tell);
