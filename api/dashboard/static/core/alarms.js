/** What is wrong with the system, read from its metrics: one entry for each thing to look at. */

/** A query that is so far behind does not keep up; a batch of the history's is smaller. */
const MOST_LAG_RECORDS = 50_000;

/** A gateway above this level takes no new clients from a balancer. */
const MOST_OVERLOAD = 4;

/**
 * Rows of a table: of which list of the metrics, when, how bad, what is said.
 *
 * @type {Array<{of: string, when: function(Object): boolean, kind: string, what: function(Object): string, detail: function(Object): string}>}
 */
const CHECKS = [
  {
    of: "processes",
    when: (one) => !one.healthy,
    kind: "bad",
    what: (one) => `${one.name} is not healthy`,
    detail: (one) => one.detail,
  },
  {
    of: "processes",
    when: (one) => one.healthy && one.restarts > 0,
    kind: "warn",
    what: (one) => `${one.name} was started again`,
    detail: (one) => `${one.restarts} times since the system came up`,
  },
  {
    of: "gateways",
    when: (one) => !one.alive,
    kind: "bad",
    what: (one) => `${one.name} does not answer`,
    detail: () => "nothing was heard of it for 3 seconds or more",
  },
  {
    of: "gateways",
    when: (one) => one.alive && one.state !== "serving",
    kind: "warn",
    what: (one) => `${one.name} is ${one.state}`,
    detail: () => "it takes no new clients",
  },
  {
    of: "gateways",
    when: (one) => one.alive && (one.overload_level > MOST_OVERLOAD || one.overload_step > 1),
    kind: "warn",
    what: (one) => `${one.name} has more to do than it can`,
    detail: (one) => `its overload level is ${one.overload_level} of 10${step(one)}`,
  },
  {
    of: "queries",
    when: (one) => one.lag_records > MOST_LAG_RECORDS,
    kind: "bad",
    what: (one) => `the query ${one.rule ? `of rule ${one.rule}` : one.name} is behind`,
    detail: (one) => `${one.lag_records} records behind the end of the log`,
  },
];

/** What a gateway does about its load. */
function step({ overload_step }) {
  return [
    "",
    "; publishers are slowed down",
    "; publishers are read no further",
    "; nobody is let in",
    "; clients that hold most memory are disconnected",
  ][overload_step];
}

/** What is wrong with the balancer, if there is one. */
function ofBalancer(balancer) {
  if (!balancer) return [];
  const page = "balancer";
  const nodes = balancer.nodes
    .filter((one) => !one.takes_clients)
    .map((one) => ({
      kind: one.draining || one.overloaded ? "warn" : "bad",
      what: `${one.name} takes no new clients`,
      detail: one.draining ? "it is drained" : one.overloaded ? "it is overloaded" : reasons(one),
      page,
    }));
  const proxies = balancer.proxies
    .filter((one) => one.problem)
    .map((one) => ({
      kind: "bad",
      what: `the proxy ${one.name} does not follow`,
      detail: one.problem,
      page,
    }));
  return [...nodes, ...proxies];
}

/** Which neighbours are away, or have missed what the log has no more. */
function ofFederation(federation) {
  const page = "federation";
  return (federation?.links ?? []).flatMap((one) => {
    const found = [];
    if (one.gone) {
      const detail = `the log had no more what it was to get next, ${one.gone} times`;
      found.push({ kind: "bad", what: `site ${one.site} has missed messages`, detail, page });
    }
    if (!one.there) {
      const detail = `${one.reason}; ${one.behind} records behind, it gets them when it is back`;
      found.push({ kind: "warn", what: `site ${one.site} is away`, detail, page });
    }
    return found;
  });
}

function reasons(node) {
  return Object.values(node.factors)
    .map((one) => one.reason)
    .filter(Boolean)
    .join("; ");
}

/**
 * @param {Object} metrics As `GET /metrics` answers.
 * @returns {Array<{kind: string, what: string, detail: string, page: string}>} `kind` is `bad` or
 *   `warn`; `page` is where there is more.
 */
export function alarmsOf(metrics) {
  const found = CHECKS.flatMap((check) =>
    (metrics[check.of] ?? []).filter(check.when).map((one) => ({
      kind: check.kind,
      what: check.what(one),
      detail: check.detail(one),
      page: "overview",
    })),
  );
  found.push(...ofBalancer(metrics.balancer));
  found.push(...ofFederation(metrics.federation));
  if (metrics.dropped_per_second > 0) {
    found.push({
      kind: "warn",
      what: "messages are dropped",
      detail: `${metrics.dropped_per_second} a second; the table drops says which and why`,
      page: "sql",
    });
  }
  return found;
}
