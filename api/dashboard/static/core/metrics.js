/**
 * The system's metrics of the last minutes: followed while somebody is logged in, so that a page
 * has them at once and its charts do not begin anew with each visit.
 */

const MOST_SAMPLES = 600;
/** Rates that charts show, by their names in `GET /metrics`. */
export const RATES = [
  "messages_received_per_second",
  "messages_stored_per_second",
  "messages_sent_per_second",
];

export class Metrics {
  /** As `GET /metrics` answers; null before the first. */
  latest = null;
  /** Seconds since 1970, and of each rate a list of the same length. */
  history = [[], ...RATES.map(() => [])];
  #watchers = new Set();

  constructor(live, signal) {
    live.follow(
      { stream: "metrics" },
      (event, data) => event === "metrics" && this.#take(data),
      signal,
    );
  }

  /** Be told of each sample, and of the last one at once. */
  watch(handle, signal) {
    this.#watchers.add(handle);
    signal.addEventListener("abort", () => this.#watchers.delete(handle));
    if (this.latest !== null) handle(this.latest);
  }

  #take(data) {
    this.latest = data;
    const sample = [Date.parse(data.at) / 1000, ...RATES.map((name) => data[name])];
    // Twice the same second would be two points above each other.
    if (sample[0] <= (this.history[0].at(-1) ?? 0)) return;
    sample.forEach((value, index) => {
      this.history[index].push(value);
      if (this.history[index].length > MOST_SAMPLES) this.history[index].shift();
    });
    for (const watcher of this.#watchers) watcher(data);
  }
}
