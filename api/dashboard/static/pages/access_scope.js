/** What keys and accounts have in common: a role, and the topics and tenants that they are for. */

import { area, listed } from "../core/form.js";
import { field, input, select } from "../core/parts.js";

const ROLES = [
  ["viewer", "viewer: may look"],
  ["editor", "editor: may also change rules and publish"],
  ["admin", "admin: may also say who may come in"],
];
const TOPICS = "One a line; empty: all topics. Not for the role admin.";
const TENANTS = "Separated by commas; empty: all, or those that you are for.";

/**
 * The fields, as they are of a key or account that is there.
 *
 * @param {Object} [given]
 * @returns {{elements: Node[], read: function(): Object}} `read` gives the members of a request that differ.
 */
export function scopeFields(given = { topic_filters: null, tenants: null }) {
  const role = select(ROLES, { value: given.role ?? "viewer" });
  const topics = area({ rows: 2, value: given.topic_filters?.join("\n") ?? "" });
  const tenants = input({ value: given.tenants?.join(", ") ?? "" });
  const texts = { topics: topics.value, tenants: tenants.value };
  return {
    elements: [
      field("Role", role),
      field("Topic filters", topics, TOPICS),
      field("Tenants", tenants, TENANTS),
    ],
    read() {
      const found = { role: role.value };
      if (topics.value !== texts.topics) found.topic_filters = listed(topics.value, "\n");
      if (tenants.value !== texts.tenants) found.tenants = listed(tenants.value, ",");
      return found;
    },
  };
}

/** Say what a key or account is for. */
export function scopeOf({ topic_filters: topics, tenants }) {
  const found = [
    topics && (topics.length ? `topics ${topics.join(", ")}` : "no topic"),
    tenants && `tenants ${tenants.join(", ")}`,
  ];
  return found.filter(Boolean).join("; ") || "everything";
}
