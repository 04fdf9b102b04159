/** Where somebody is: `#/topics/plant%2F1?filter=plant%2F%23`. */

/** Return the page, what of it (empty for the page itself) and its parameters. */
export function read() {
  const [path, query] = location.hash.replace(/^#\/?/u, "").split("?");
  const [page, ...rest] = path.split("/");
  return {
    page: page || "overview",
    item: decode(rest.join("/")),
    query: new URLSearchParams(query ?? ""),
  };
}

/** Return a link to a place. */
export function link(page, item = "", query = {}) {
  const wanted = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
  const text = wanted.toString();
  return `#/${page}${item ? `/${encodeURIComponent(item)}` : ""}${text ? `?${text}` : ""}`;
}

export function go(page, item = "", query = {}) {
  location.hash = link(page, item, query);
}

/** Say where somebody is without opening the page again. */
export function note(page, item = "", query = {}) {
  history.replaceState(null, "", link(page, item, query));
}

/** Be told where somebody is, now and whenever that changes. */
export function watchPlace(signal, handle) {
  addEventListener("hashchange", handle, { signal });
  handle();
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
