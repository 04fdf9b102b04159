/** Who may use the API: keys for programs, accounts for people, and who is logged in now. */

import { h } from "../core/dom.js";
import { heading, tabs } from "../core/parts.js";
import { accounts } from "./accounts.js";
import { keys } from "./keys.js";
import { logins } from "./logins.js";

const ABOUT =
  "These are for the API and this dashboard. Which MQTT clients may connect, and what they may do, is said by the gateways' users and rights.";

export function mount(context) {
  const kinds = [
    { label: "Keys", make: () => keys(context) },
    { label: "Accounts", make: () => accounts(context) },
    { label: "Sessions", make: () => logins(context) },
  ];
  const title = "Keys and accounts";
  return h(
    "div",
    heading(title),
    h("p.hint", ABOUT),
    h("section.panel", { "aria-label": title }, tabs(title, kinds).element),
  );
}
