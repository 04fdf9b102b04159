/** Clients with a session; one of them with its subscriptions and what is on its way. */

import { afterPause, every, fill, h, inTurn } from "../core/dom.js";
import { followed } from "../core/followed.js";
import { count, moment, seconds } from "../core/format.js";
import {
  ask,
  badge,
  button,
  facts,
  field,
  heading,
  notice,
  panel,
  select,
  table,
  input,
} from "../core/parts.js";
import { byClient } from "../core/hints.js";
import { pagedList } from "../core/paged.js";
import { note } from "../core/place.js";
import { NEVER_EXPIRES } from "../core/vocabulary.js";

const REFRESH_MS = 5_000;
/** After that a session that was ended is no longer listed. */
const ENDED_MS = 1_000;
const PAGE = 100;
const MOST_IN_FLIGHT = 200;
const STATES = [
  ["", "All"],
  ["true", "Connected"],
  ["false", "Not connected"],
];
const ABOUT =
  "Clients whose session outlives their connection, or who have a will. Others are known to their gateway alone; the table events has when they came and went.";

const NOTHING =
  "No client has a session that outlives its connection, or none that fits. Connect one with a Session Expiry Interval, of MQTT 3 without a clean session.";

export function mount({ api, signal, place }) {
  const prefix = input({ type: "search" });
  const username = input({ type: "search" });
  const state = select(STATES);
  const beside = h("div.beside");
  const asked = () => ({
    client_id_prefix: prefix.value,
    connected: state.value,
    username: username.value,
    limit: PAGE,
  });
  const shown = clientTable(api, (one) => show(one.client_id));
  const read = (cursor, mine) => api.get("/clients", { ...asked(), cursor }, mine);
  const list = pagedList(shown, read, signal);
  const follow = inTurn(signal, (mine, clientId) =>
    fill(beside, oneClient(api, clientId, list.load, mine)),
  );
  function show(clientId) {
    note("clients", clientId);
    follow(clientId);
  }
  for (const one of [prefix, username]) {
    one.addEventListener("input", afterPause(250, list.restart));
  }
  state.addEventListener("change", list.restart);
  every(REFRESH_MS, signal, list.load);
  if (place.item) show(place.item);
  const form = h(
    "form.row",
    { on: { submit: (event) => event.preventDefault() } },
    field("Client identifier begins with", prefix),
    field("User name", username),
    field("State", state),
  );
  const listed = h("section.panel", { "aria-label": "List of clients" }, list.elements);
  const split = h("div.split", listed, beside);
  return h("div", heading("Clients"), h("p.hint", ABOUT), form, list.wrong, split);
}

function clientTable(api, open) {
  const since = (one) => moment(one.connected ? one.connected_at : one.disconnected_at);
  const columns = [
    { label: "Client", cell: (one) => one.client_id },
    { label: "State", cell: stateOf },
    { label: "User", cell: (one) => one.username ?? "–" },
    { label: "Gateway", cell: (one) => one.gateway },
    { label: "MQTT", cell: (one) => one.protocol_version },
    { label: "Subscriptions", cell: (one) => count(one.subscription_count), class: "number" },
    { label: "Since", cell: since },
  ];
  const empty = [NOTHING, byClient(api)];
  return table("Clients", columns, { empty, open, key: (one) => one.client_id });
}

/** One client, followed until a signal ends it. */
function oneClient(api, clientId, reload, signal) {
  const read = () => api.get(`/clients/${encodeURIComponent(clientId)}`, {}, signal);
  return followed(REFRESH_MS, signal, read, (found) => detail(api, found, reload));
}

function detail(api, found, reload) {
  const { length: sent } = found.in_flight_out;
  const received = found.in_flight_in.length;
  return panel(
    found.client_id,
    { class: "detail", actions: api.may("editor") && endings(api, found, reload) },
    facts(factsOf(found)),
    h("h3", "Subscriptions"),
    subscriptionTable(found),
    h("h3", `In flight: ${count(sent)} to the client, ${count(received)} from it`),
    inFlightTable(found),
  );
}

/** The buttons that end a connection, or the session as well. */
function endings(api, client, reload) {
  const path = `/clients/${encodeURIComponent(client.client_id)}`;
  const end = async (question, yes, endSession) => {
    if (!(await ask(`${question} ${client.client_id}?`, yes))) return;
    await api.send("DELETE", path, undefined, { end_session: endSession });
    notice(`Asked the gateways: ${client.client_id}`);
    setTimeout(reload, ENDED_MS);
  };
  const session = () => end("End the session of", "End session", true);
  return [
    client.connected && button("Disconnect", () => end("Disconnect", "Disconnect", false)),
    button("End session", session, { kind: "danger" }),
  ];
}

function factsOf(client) {
  const { disconnected_at: left, session_expiry_interval: lasts, keep_alive: alive } = client;
  return [
    ["State", stateOf(client)],
    ["User", client.username],
    ["Gateway", client.gateway],
    ["MQTT", client.protocol_version],
    ["Connected", moment(client.connected_at)],
    left && ["Left", `${moment(left)}: ${client.disconnect_reason}`],
    ["Keep alive", alive ? seconds(alive) : "off"],
    ["Session lasts", lasts === NEVER_EXPIRES ? "for ever" : seconds(lasts)],
    client.will && ["Will", client.will.topic_name],
    ["QoS 2 open", count(client.qos2_unacknowledged)],
  ];
}

function subscriptionTable({ subscriptions }) {
  const columns = [
    { label: "Topic filter", cell: (one) => one.topic_filter },
    { label: "QoS", cell: (one) => one.qos, class: "number" },
    { label: "Options", cell: options },
  ];
  const shown = table("Subscriptions", columns, { empty: "None." });
  shown.show(subscriptions);
  return shown.element;
}

function inFlightTable(client) {
  const place = (one) => (one.released ? "released" : `${one.partition}:${one.offset}`);
  const columns = [
    { label: "Packet", cell: (one) => one.packet_id },
    { label: "QoS", cell: (one) => one.qos, class: "number" },
    { label: "Place in the log", cell: place },
  ];
  const shown = table("Messages in flight", columns, { empty: "Nothing is on its way." });
  shown.show(client.in_flight_out.slice(0, MOST_IN_FLIGHT));
  return shown.element;
}

function stateOf(client) {
  return client.connected ? badge("connected", "good") : badge("away", "idle");
}

function options(one) {
  const said = [
    one.no_local && "no local",
    one.retain_as_published && "retain as published",
    one.retain_handling && `retain handling ${one.retain_handling}`,
    one.identifier && `identifier ${one.identifier}`,
  ];
  return said.filter(Boolean).join(", ") || "–";
}
