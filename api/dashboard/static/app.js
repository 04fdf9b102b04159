/** The dashboard: who is there, which page is open. */

import { Api, isAborted, words } from "./core/api.js";
import { fill, h, inTurn } from "./core/dom.js";
import { frame } from "./core/frame.js";
import { Live } from "./core/live.js";
import { Metrics } from "./core/metrics.js";
import { button } from "./core/parts.js";
import { read, watchPlace } from "./core/place.js";

/** A page is shown to those who have a role and may ask for what it is about. */
const page = (name, title, asks, load, role = "viewer") => ({ name, title, asks, load, role });

/** In the order of the navigation; a page's module is loaded when it is opened first. */
const PAGES = [
  page("overview", "Overview", "GET /live/metrics", () => import("./pages/overview.js")),
  page("topics", "Topics", "GET /topics", () => import("./pages/topics.js")),
  page("clients", "Clients", "GET /clients", () => import("./pages/clients.js")),
  page("balancer", "Balancer", "GET /balancer", () => import("./pages/balancer.js")),
  page("federation", "Federation", "GET /federation", () => import("./pages/federation.js")),
  page("rules", "Rules", "GET /rules", () => import("./pages/rules.js")),
  page("sql", "SQL", "POST /sql", () => import("./pages/sql.js")),
  page("retained", "Retained", "GET /retained", () => import("./pages/retained.js")),
  page("trace", "Message trace", "GET /messages/{id}/trace", () => import("./pages/trace.js")),
  page("references", "References", "GET /references", () => import("./pages/references.js")),
  page("schemas", "Schemas", "GET /schemas", () => import("./pages/schemas.js")),
  page("jobs", "Jobs and replay", "GET /jobs", () => import("./pages/jobs.js")),
  page("alarms", "Alarms", "GET /alarms", () => import("./pages/alarms.js")),
  page("mqtt", "MQTT client", "GET /gateways", () => import("./pages/mqtt.js")),
  page("access", "Keys and accounts", "GET /keys", () => import("./pages/access.js")),
  page("audit", "Audit", "POST /sql", () => import("./pages/audit.js"), "admin"),
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
  const { signal } = over;
  const live = new Live();
  const metrics = new Metrics(live, signal);
  const end = (said) => {
    if (signal.aborted) return;
    over.abort();
    live.close();
    showLogin(said);
  };
  const logOut = async () => {
    await api.logOut();
    end("");
  };
  api.onLoggedOut = () => end("Your session is over. Log in again.");
  // A WebSocket does not say why it was refused; this request does, and ends the session if it is.
  live.onRefused = () => api.get("/session", { tenant: null }).catch(() => {});

  const pages = PAGES.filter(({ asks, role }) => api.may(role) && api.can(asks));
  const names = pages.map((one) => one.name);
  const main = h("main", { id: "main", tabindex: -1 });
  const context = { api, live, metrics, signal };
  const side = frame(context, pages, logOut, () => offerTour(names, signal, true));
  fill(document.body, skipLink(main), h("div.shell", side.element, main));
  watchPages(context, pages, main, side.show);
  offerTour(names, signal, false);
}

/** Show the tour to somebody who has not been here before, or who wants it. */
async function offerTour(names, signal, isWanted) {
  const { isNew, showTour } = await import("./pages/tour.js");
  if ((isWanted || isNew()) && !signal.aborted) showTour(names, signal);
}

function skipLink(main) {
  const click = (event) => {
    event.preventDefault();
    main.focus();
  };
  return h("a.skip", { href: "#main", on: { click } }, "Skip to the page");
}

/** Show the page that the address names, now and whenever that changes; `show` is told which. */
function watchPages(context, pages, main, show) {
  let isFirst = true;
  const turn = inTurn(context.signal, async (signal) => {
    const place = read();
    const found = pages.find((one) => one.name === place.page) ?? pages[0];
    if (!found) {
      fill(main, h("p.problem", { role: "alert" }, "Your login may use none of these pages."));
      return;
    }
    show(found);
    document.title = `${found.title} · mqlake`;
    await openPage(found, { ...context, signal, place }, main);
    if (signal.aborted) return;
    // Who has chosen a page by keyboard goes on in it; who has just come begins at the top.
    const { activeElement: focused } = document;
    const isElsewhere = !main.contains(focused) && !focused?.closest("[role=dialog]");
    if (!isFirst && isElsewhere) main.querySelector("h1")?.focus();
    isFirst = false;
  });
  watchPlace(context.signal, () => turn());
}

async function openPage(found, context, main) {
  const { signal } = context;
  try {
    const module = await found.load();
    if (signal.aborted) return;
    fill(main, module.mount(context));
    main.dataset.place = location.hash;
  } catch (error) {
    if (signal.aborted || isAborted(error)) return;
    console.error(error);
    const text = `This page could not be shown: ${words(error)}`;
    fill(main, h("p.problem", { role: "alert" }, text));
  }
}

start();
