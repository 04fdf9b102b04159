/**
 * Live streams: one WebSocket for all that the pages follow.
 *
 * A browser lends a page six connections to a server at a time; streams of their own would use
 * them up. A stream ends with the signal of whoever wanted it, and comes back after a break.
 */

const URL_PATH = "/api/v1/live/ws";
const SUBPROTOCOL = "mqlake.v1";
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10_000;

export class Live {
  #socket = null;
  #streams = new Map();
  #watchers = new Set();
  #lastId = 0;
  #wait = FIRST_WAIT_MS;
  #timer = 0;
  #isClosed = false;

  /** `connecting`, `open` or `away`. */
  state = "connecting";
  /** Called when a connection could not be opened: the session may be over. */
  onRefused = () => {};

  /**
   * Follow a stream.
   *
   * @param {Object} asked As the API wants it: `stream`, `topic_filters`, `rule_id`, `max_rate` …
   * @param {function(string, Object)} handle Gets each event's name and data; `subscribed` each
   *   time that the stream begins, again after a break too.
   * @param {AbortSignal} signal Ends it.
   */
  follow(asked, handle, signal) {
    if (signal.aborted) return;
    this.#lastId += 1;
    const id = String(this.#lastId);
    this.#streams.set(id, { asked, handle });
    this.#send({ subscribe: id, ...asked });
    this.#connect();
    signal.addEventListener("abort", () => {
      this.#streams.delete(id);
      this.#send({ unsubscribe: id });
    });
  }

  /** Be told of every change of `state`. */
  watch(handle) {
    this.#watchers.add(handle);
    handle(this.state);
  }

  close() {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    this.#streams.clear();
    this.#watchers.clear();
    // A browser warns of a connection that is given up before it is open; such a one is closed then.
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.close();
  }

  #connect() {
    if (this.#socket !== null || this.#isClosed) return;
    clearTimeout(this.#timer);
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}${URL_PATH}`, [SUBPROTOCOL]);
    let wasOpen = false;
    this.#socket = socket;
    socket.onopen = () => {
      if (this.#isClosed) {
        socket.close();
        return;
      }
      wasOpen = true;
      this.#wait = FIRST_WAIT_MS;
      this.#say("open");
      for (const [id, { asked }] of this.#streams) this.#send({ subscribe: id, ...asked });
    };
    socket.onmessage = (message) => {
      for (const { id, event, data } of JSON.parse(message.data)) {
        this.#streams.get(id)?.handle(event, data);
      }
    };
    socket.onclose = () => {
      this.#socket = null;
      if (this.#isClosed) return;
      this.#say("away");
      if (!wasOpen) this.onRefused();
      if (this.#streams.size === 0) return;
      this.#timer = setTimeout(() => this.#connect(), this.#wait);
      this.#wait = Math.min(this.#wait * 2, LONGEST_WAIT_MS);
    };
  }

  #send(frame) {
    // What is asked for before the connection is open is asked for when it is.
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(frame));
  }

  #say(state) {
    this.state = state;
    for (const watcher of this.#watchers) watcher(state);
  }
}
