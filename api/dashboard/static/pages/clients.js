/** Clients with a session; one of them with its subscriptions and what is on its way. */

import { inPath, isAborted } from "../core/api.js";
import { afterPause, every, fill, h } from "../core/dom.js";
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
  problem,
  select,
  table,
  input,
} from "../core/parts.js";
import { note } from "../core/place.js";

const REFRESH_MS = 5_000;
/** After that a session that was ended is no longer listed. */
const ENDED_MS = 1_000;
const PAGE = 100;
const FOR_EVER = 4_294_967_295;

export function mount({ api, signal, place }) {
  const prefix = input({ type: "search" });
  const state = select([
    ["", "All"],
    ["true", "Connected"],
    ["false", "Not connected"],
  ]);
  const username = input({ type: "search" });
  const wrong = h("div");
  const beside = h("div.beside");
  let cursor = null;
  let pages = 1;
  let asking = new AbortController();

  const list = table(
    "Clients",
    [
      { label: "Client", cell: (one) => one.client_id },
      { label: "State", cell: (one) => stateOf(one) },
      { label: "User", cell: (one) => one.username ?? "–" },
      { label: "Gateway", cell: (one) => one.gateway },
      { label: "MQTT", cell: (one) => one.protocol_version },
      { label: "Subscriptions", cell: (one) => count(one.subscription_count), class: "number" },
      {
        label: "Since",
        cell: (one) => moment(one.connected ? one.connected_at : one.disconnected_at),
      },
    ],
    {
      empty: "No client has a session that outlives its connection.",
      open: (one) => show(one.client_id),
      key: (one) => one.client_id,
    },
  );
  const more = button("More", () => {
    pages += 1;
    return load();
  });
  more.hidden = true;

  async function load() {
    asking.abort();
    asking = new AbortController();
    const { signal: mine } = asking;
    const asked = {
      client_id_prefix: prefix.value,
      connected: state.value,
      username: username.value,
      limit: PAGE,
    };
    try {
      const items = [];
      cursor = null;
      for (let page = 0; page < pages; page += 1) {
        const found = await api.get("/clients", { ...asked, cursor }, mine);
        items.push(...found.items);
        cursor = found.next_cursor;
        if (!cursor) break;
      }
      list.show(items);
      more.hidden = !cursor;
      fill(wrong);
    } catch (error) {
      if (!isAborted(error)) problem(wrong, error);
    }
  }
  signal.addEventListener("abort", () => asking.abort());
  const change = () => {
    pages = 1;
    load();
  };
  for (const control of [prefix, username])
    control.addEventListener("input", afterPause(250, change));
  state.addEventListener("change", change);
  every(REFRESH_MS, signal, load);

  let shown = new AbortController();
  function show(clientId) {
    shown.abort();
    shown = new AbortController();
    note("clients", clientId);
    const { signal: mine } = shown;
    signal.addEventListener("abort", () => mine.aborted || shown.abort());
    const here = h("div");
    let known = "";
    fill(beside, here);
    every(REFRESH_MS, mine, async () => {
      try {
        const client = await api.get(`/clients/${inPath(clientId)}`, {}, mine);
        const text = JSON.stringify(client);
        if (text === known || here.contains(document.activeElement)) return;
        known = text;
        fill(here, detail(client));
      } catch (error) {
        if (!isAborted(error)) problem(here, error);
      }
    });
  }

  function detail(client) {
    const end = async (endSession) => {
      const what = endSession ? "End the session of" : "Disconnect";
      if (!(await ask(`${what} ${client.client_id}?`, endSession ? "End session" : "Disconnect")))
        return;
      await api.send("DELETE", `/clients/${inPath(client.client_id)}`, undefined, {
        end_session: endSession,
      });
      notice(`Asked the gateways: ${client.client_id}`);
      setTimeout(load, ENDED_MS);
    };
    const mayEnd = api.may("editor");
    const subscriptions = table(
      "Subscriptions",
      [
        { label: "Topic filter", cell: (one) => one.topic_filter },
        { label: "QoS", cell: (one) => one.qos, class: "number" },
        { label: "Options", cell: options },
      ],
      { empty: "None." },
    );
    subscriptions.show(client.subscriptions);
    const sent = table(
      "Messages in flight",
      [
        { label: "Packet", cell: (one) => one.packet_id },
        { label: "QoS", cell: (one) => one.qos, class: "number" },
        {
          label: "Place in the log",
          cell: (one) => (one.released ? "released" : `${one.partition}:${one.offset}`),
        },
      ],
      { empty: "Nothing is on its way." },
    );
    sent.show(client.in_flight_out.slice(0, 200));
    return panel(
      client.client_id,
      {
        class: "detail",
        actions: mayEnd && [
          client.connected && button("Disconnect", () => end(false)),
          button("End session", () => end(true), { kind: "danger" }),
        ],
      },
      facts([
        ["State", stateOf(client)],
        ["User", client.username],
        ["Gateway", client.gateway],
        ["MQTT", client.protocol_version],
        ["Connected", moment(client.connected_at)],
        client.disconnected_at && [
          "Left",
          `${moment(client.disconnected_at)}: ${client.disconnect_reason}`,
        ],
        ["Keep alive", client.keep_alive ? seconds(client.keep_alive) : "off"],
        [
          "Session lasts",
          client.session_expiry_interval === FOR_EVER
            ? "for ever"
            : seconds(client.session_expiry_interval),
        ],
        client.will && ["Will", client.will.topic_name],
        ["QoS 2 open", count(client.qos2_unacknowledged)],
      ]),
      h("h3", "Subscriptions"),
      subscriptions.element,
      h(
        "h3",
        `In flight: ${count(client.in_flight_out.length)} to the client, ${count(client.in_flight_in.length)} from it`,
      ),
      sent.element,
    );
  }

  if (place.item) show(place.item);
  return h(
    "div",
    heading("Clients"),
    h(
      "p.hint",
      "Clients whose session outlives their connection, or who have a will. Others are known to their gateway alone; the table events has when they came and went.",
    ),
    h(
      "form.row",
      { on: { submit: (event) => event.preventDefault() } },
      field("Client identifier begins with", prefix),
      field("User name", username),
      field("State", state),
    ),
    wrong,
    h(
      "div.split",
      h("section.panel", { "aria-label": "List of clients" }, list.element, more),
      beside,
    ),
  );
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
