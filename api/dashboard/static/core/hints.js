/** What an empty page says to do. */

import { h } from "./dom.js";
import { link } from "./place.js";

/** With what somebody publishes or connects: the page of this dashboard, for those who may open it. */
export function byClient(api) {
  if (!api.can("GET /gateways")) return " Any MQTT client can.";
  return [
    " The page ",
    h("a", { href: link("mqtt") }, "MQTT client"),
    " can, as any other client.",
  ];
}
