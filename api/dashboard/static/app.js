/** The dashboard: who is there, which page is open. */

import { alarmsOf } from "./core/alarms.js";
import { Api, isAborted, Problem, words } from "./core/api.js";
import { fill, h } from "./core/dom.js";
import { Live } from "./core/live.js";
import { Metrics } from "./core/metrics.js";
import { button, select } from "./core/parts.js";
import { read, watchPlace } from "./core/place.js";
import { nextTheme, theme } from "./core/theme.js";

/**
 * In the order of the navigation; a page's module is loaded when it is opened first. A page is shown
 * to those who may ask for what it is about.
 */
const PAGES = [
  {
    name: "overview",
    title: "Overview",
    asks: "GET /live/metrics",
    load: () => import("./pages/overview.js"),
  },
  {
    name: "topics",
    title: "Topics",
    asks: "GET /topics",
    load: () => import("./pages/topics.js"),
  },
  {
    name: "clients",
    title: "Clients",
    asks: "GET /clients",
    load: () => import("./pages/clients.js"),
  },
  {
    name: "balancer",
    title: "Balancer",
    asks: "GET /balancer",
    load: () => import("./pages/balancer.js"),
  },
  {
    name: "federation",
    title: "Federation",
    asks: "GET /federation",
    load: () => import("./pages/federation.js"),
  },
  {
    name: "rules",
    title: "Rules",
    asks: "GET /rules",
    load: () => import("./pages/rules.js"),
  },
  {
    name: "sql",
    title: "SQL",
    asks: "POST /sql",
    load: () => import("./pages/sql.js"),
  },
  {
    name: "retained",
    title: "Retained",
    asks: "GET /retained",
    load: () => import("./pages/retained.js"),
  },
  {
    name: "alarms",
    title: "Alarms",
    asks: "GET /dead_letters",
    load: () => import("./pages/alarms.js"),
  },
  {
    name: "mqtt",
    title: "MQTT client",
    asks: "GET /gateways",
    load: () => import("./pages/mqtt.js"),
  },
];

const api = new Api();

async function start() {
  try {
    if (await api.whoAmI()) open();
    else await showLogin();
  } catch (error) {
    fill(
      document.body,
      h("main.lonely", h("p", { role: "alert" }, words(error)), button("Try again", start)),
    );
  }
}

async function showLogin(said = "") {
  const { login } = await import("./pages/login.js");
  document.title = "Log in · mqlake";
  fill(document.body, login(api, said, open));
  document.querySelector("[data-first]")?.focus();
}

/** Show the pages, from a login until its end. */
function open() {
  const over = new AbortController();
  const live = new Live();
  const metrics = new Metrics(live, over.signal);
  const end = (said) => {
    if (over.signal.aborted) return;
    over.abort();
    live.close();
    showLogin(said);
  };
  api.onLoggedOut = () => end("Your session is over. Log in again.");
  // A WebSocket does not say why it was refused; this request does, and ends the session if it is.
  live.onRefused = () => api.get("/session", { tenant: null }).catch(() => {});

  const pages = PAGES.filter(({ asks }) => api.can(asks));
  const main = h("main", { id: "main", tabindex: -1 });
  const { element, show } = frame(pages, live, metrics, over.signal, async () => {
    await api.logOut();
    end("");
  });
  fill(
    document.body,
    h(
      "a.skip",
      {
        href: "#main",
        on: {
          click: (event) => {
            event.preventDefault();
            main.focus();
          },
        },
      },
      "Skip to the page",
    ),
    h("div.shell", element, main),
  );

  let page = new AbortController();
  over.signal.addEventListener("abort", () => page.abort());
  let isFirst = true;
  watchPlace(over.signal, async () => {
    page.abort();
    page = new AbortController();
    const { signal } = page;
    const place = read();
    const found = pages.find((one) => one.name === place.page) ?? pages[0];
    if (!found) {
      fill(main, h("p.problem", { role: "alert" }, "Your login may use none of these pages."));
      return;
    }
    show(found);
    document.title = `${found.title} · mqlake`;
    try {
      const module = await found.load();
      if (signal.aborted) return;
      fill(main, module.mount({ api, live, metrics, signal, place }));
      main.dataset.place = location.hash;
    } catch (error) {
      if (signal.aborted || isAborted(error)) return;
      console.error(error);
      fill(
        main,
        h("p.problem", { role: "alert" }, `This page could not be shown: ${words(error)}`),
      );
    }
    // Who has chosen a page by keyboard goes on in it; who has just come begins at the top.
    if (!isFirst && !main.contains(document.activeElement)) main.querySelector("h1")?.focus();
    isFirst = false;
  });
}

/** Navigation and what is the same on all pages. */
function frame(pages, live, metrics, signal, logOut) {
  const alarms = h("span.counter", { hidden: true });
  const links = pages.map(({ name, title }) =>
    h("a", { href: `#/${name}`, data: { page: name } }, title, name === "alarms" && alarms),
  );
  const nav = h("nav", { id: "nav", "aria-label": "Pages" }, links);
  const menu = h(
    "button.menu",
    {
      type: "button",
      "aria-expanded": "false",
      "aria-controls": "nav",
      on: { click: () => setMenu(menu.getAttribute("aria-expanded") !== "true") },
    },
    "Menu",
  );
  const dot = h("span.dot", { "aria-hidden": "true" });
  const state = h("span", "");
  const themes = h("button.quiet", { type: "button", on: { click: () => sayTheme(nextTheme()) } });
  const tenants = h("span.tenants");
  const element = h(
    "header.side",
    { class: "side" },
    h(
      "div.brand",
      h("img", { src: "mark.svg", alt: "", width: 24, height: 24 }),
      h("strong", "mqlake"),
      menu,
    ),
    h(
      "div.drawer",
      nav,
      h(
        "div.foot",
        tenants,
        h("p.live", { role: "status" }, dot, state),
        h("p.who", api.session.name, h("small", ` ${api.session.role}`)),
        h("div.actions", themes, button("Log out", logOut, { kind: "quiet" })),
      ),
    ),
  );

  function setMenu(isOpen) {
    menu.setAttribute("aria-expanded", String(isOpen));
    element.classList.toggle("open", isOpen);
  }
  function sayTheme(name) {
    fill(themes, `Theme: ${name}`);
  }
  sayTheme(theme());
  element.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && element.classList.contains("open")) {
      setMenu(false);
      menu.focus();
    }
  });
  live.watch((now) => {
    dot.className = `dot ${now}`;
    fill(state, { connecting: "Connecting", open: "Live", away: "Not connected" }[now]);
  });
  metrics.watch((data) => {
    const number = alarmsOf(data).filter((one) => one.kind === "bad").length;
    alarms.hidden = number === 0;
    fill(alarms, number, h("span.aside", " open"));
  }, signal);
  showTenants(tenants);

  return {
    element,
    show(page) {
      for (const link of links) {
        if (link.dataset.page === page.name) link.setAttribute("aria-current", "page");
        else link.removeAttribute("aria-current");
      }
      setMenu(false);
    },
  };
}

/** Most systems have one tenant, and then there is nothing to choose. */
async function showTenants(place) {
  let names;
  try {
    names = (await api.get("/tenants", { tenant: null, limit: 1000 })).items.map((one) => one.name);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    return;
  }
  if (names.length < 2) return;
  fill(
    place,
    h(
      "label",
      "Tenant ",
      select(names, {
        value: api.tenant,
        on: {
          change: (event) => {
            api.tenant = event.target.value;
            dispatchEvent(new HashChangeEvent("hashchange"));
          },
        },
      }),
    ),
  );
}

start();
