/** Navigation, and what else is the same on all pages. */

import { isAborted, Problem } from "./api.js";
import { every, fill, h } from "./dom.js";
import { button, select } from "./parts.js";
import { nextTheme, theme } from "./theme.js";
import { MAX_LIMIT } from "./vocabulary.js";

const ALARMS_MS = 5_000;
const STATES = { connecting: "Connecting", open: "Live", away: "Not connected" };

/**
 * @param {Object} context As pages get it.
 * @param {Array<{name: string, title: string}>} pages
 * @param {function()} logOut
 * @param {function()} startTour
 * @returns {{element: HTMLElement, show: function(Object)}} `show` says which page is open.
 */
export function frame(context, pages, logOut, startTour) {
  const links = pages.map(({ name, title }) =>
    h(
      "a",
      { href: `#/${name}`, data: { page: name } },
      title,
      name === "alarms" && alarmCounter(context),
    ),
  );
  const nav = h("nav", { id: "nav", "aria-label": "Pages" }, links);
  const { element, close } = side(h("div.drawer", nav, foot(context, logOut, startTour)));
  function show(page) {
    for (const link of links) {
      if (link.dataset.page === page.name) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    close();
  }
  return { element, show };
}

/** How many alarms nobody has acknowledged. */
function alarmCounter({ api, signal }) {
  const counter = h("span.counter", { hidden: true });
  every(ALARMS_MS, signal, async () => {
    try {
      const { items } = await api.get("/alarms", { tenant: null, limit: MAX_LIMIT }, signal);
      const open = items.filter((one) => one.severity === "alarm" && one.state === "open");
      counter.hidden = open.length === 0;
      fill(counter, open.length, h("span.aside", " open"));
    } catch (error) {
      if (!isAborted(error) && !(error instanceof Problem)) throw error;
      counter.hidden = true; // the page says why
    }
  });
  return counter;
}

/** The bar beside the page; on narrow screens a button opens its drawer. */
function side(drawer) {
  const click = () => set(menu.getAttribute("aria-expanded") !== "true");
  const state = { "aria-expanded": "false", "aria-controls": "nav" };
  const menu = h("button.menu", { type: "button", ...state, on: { click } }, "Menu");
  const mark = h("img", { src: "mark.svg", alt: "", width: 24, height: 24 });
  const element = h("header.side", h("div.brand", mark, h("strong", "mqlake"), menu), drawer);
  function set(isOpen) {
    menu.setAttribute("aria-expanded", String(isOpen));
    element.classList.toggle("open", isOpen);
  }
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !element.classList.contains("open")) return;
    set(false);
    menu.focus();
  });
  return { element, close: () => set(false) };
}

/** Whose data are shown, whether they are live, who has logged in. */
function foot({ api, live }, logOut, startTour) {
  const dot = h("span.dot", { "aria-hidden": "true" });
  const state = h("span", "");
  const tenants = h("span.tenants");
  live.watch((now) => {
    dot.className = `dot ${now}`;
    fill(state, STATES[now]);
  });
  showTenants(api, tenants);
  return h(
    "div.foot",
    tenants,
    h("p.live", { role: "status" }, dot, state),
    h("p.who", api.session.name, h("small", ` ${api.session.role}`)),
    h(
      "div.actions",
      themeButton(),
      button("Tour", startTour, { kind: "quiet" }),
      button("Log out", logOut, { kind: "quiet" }),
    ),
  );
}

function themeButton() {
  const say = (name) => fill(element, `Theme: ${name}`);
  const click = () => say(nextTheme());
  const element = h("button.quiet", { type: "button", on: { click } });
  return say(theme());
}

/** Most systems have one tenant, and then there is nothing to choose. */
async function showTenants(api, place) {
  let names;
  try {
    const { items } = await api.get("/tenants", { tenant: null, limit: MAX_LIMIT });
    names = items.map((one) => one.name);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    return;
  }
  if (names.length < 2) return;
  const change = (event) => {
    api.tenant = event.target.value;
    dispatchEvent(new HashChangeEvent("hashchange"));
  };
  fill(place, h("label", "Tenant ", select(names, { value: api.tenant, on: { change } })));
}
