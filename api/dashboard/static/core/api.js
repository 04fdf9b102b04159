/** The REST API, asked with the session's cookie. */

import { ROLES } from "./vocabulary.js";

const PREFIX = "/api/v1";
/** For so long what says that it is about to be ready is asked again. */
const FOLLOW_MS = 120_000;

/** What the API answers when it does not do what it was asked for. */
export class Problem extends Error {
  /** @param {Object} body As problem+json has it: `title`, `status`, `detail`, `code` and more. */
  constructor(body) {
    super(body.detail || body.title || `status ${body.status}`);
    this.name = "Problem";
    this.body = body;
    this.status = body.status;
    this.code = body.code;
    /** Seconds after which it makes sense to ask again; null: nobody knows. */
    this.retryAfter = body.retryAfter ?? null;
  }
}

export class Api {
  /** Who asks, as `GET /session` says; null before a login. */
  session = null;
  /** What who asks may ask for, as `GET /clients`. */
  #operations = new Set();
  tenant = "default";
  /** Called when the session is over. */
  onLoggedOut = () => {};

  /** Return who asks, or null: nobody that the API knows. */
  async whoAmI() {
    try {
      await this.begin(await this.get("/session", { tenant: null }));
    } catch (error) {
      if (!(error instanceof Problem) || error.status !== 401) throw error;
      this.session = null;
    }
    return this.session;
  }

  async logIn(credentials) {
    await this.begin(await this.send("POST", "/login", credentials, { tenant: null }));
    return this.session;
  }

  /** Take who asks; of somebody for some tenants the first of these is looked at. */
  async begin(session) {
    this.session = session;
    if (session.tenants && !session.tenants.includes(this.tenant)) [this.tenant] = session.tenants;
    const { operations } = await this.get("/session/operations", { tenant: null });
    this.#operations = new Set(operations);
  }

  /** Tell whether who asks may ask for an operation, `GET /clients` say; as `may`. */
  can(operation) {
    return this.#operations.has(operation);
  }

  async logOut() {
    await this.send("POST", "/logout", undefined, { tenant: null });
    this.session = null;
  }

  /** Tell whether the role of whoever asks is enough; the API decides, this hides what is in vain. */
  may(role) {
    return ROLES.indexOf(this.session?.role) >= ROLES.indexOf(role);
  }

  /**
   * @param {string} path Behind /api/v1.
   * @param {Object} [query] Parameters; null and undefined are left out, lists repeat. The tenant
   *   is added unless it is given, as null for none.
   * @param {AbortSignal} [signal]
   */
  get(path, query = {}, signal = undefined) {
    return this.#ask("GET", path, undefined, query, signal).then(readJson);
  }

  /** As `get`, with a body, a Blob as it is and others as JSON; the answer's JSON, or null without one. */
  send(method, path, body, query = {}, signal = undefined) {
    return this.#ask(method, path, body, query, signal).then(readJson);
  }

  /**
   * Ask what Spark answers, and again as long as the API says that it is about to be ready.
   *
   * @param {string} path Of a POST.
   * @param {Object} body
   * @param {AbortSignal} [signal]
   * @param {function()} [onWait] Called before each pause.
   */
  askSpark(path, body, signal = undefined, onWait = () => {}) {
    return whenReady(() => this.#ask("POST", path, body, {}, signal), signal, onWait);
  }

  /** As `askSpark`, of a GET; the answer's JSON. */
  getSpark(path, query, signal = undefined, onWait = () => {}) {
    return whenReady(() => this.get(path, query, signal), signal, onWait);
  }

  /** Have Spark started before somebody asks it for something; nobody waits for that. */
  startSpark() {
    this.#ask("POST", "/sql/start", undefined, { tenant: null }).catch(() => {});
  }

  async #ask(method, path, body, query, signal) {
    const headers = {};
    const isJson = body !== undefined && !(body instanceof Blob);
    if (isJson) headers["Content-Type"] = "application/json";
    if (method !== "GET" && this.session?.csrf_token) {
      headers["X-CSRF-Token"] = this.session.csrf_token;
    }
    let answer;
    try {
      answer = await fetch(PREFIX + path + toQuery({ tenant: this.tenant, ...query }), {
        method,
        headers,
        body: isJson ? JSON.stringify(body) : body,
        signal,
        credentials: "same-origin",
        cache: "no-store",
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem({ status: 0, code: "unreachable", detail: "The API does not answer." });
    }
    if (answer.ok) return answer;
    const problem = new Problem(await readProblem(answer));
    if (answer.status === 401 && this.session !== null) {
      this.session = null;
      this.onLoggedOut();
    }
    throw problem;
  }
}

/** Do something, and again as long as what it asks is about to be ready. */
async function whenReady(work, signal, onWait) {
  const until = performance.now() + FOLLOW_MS;
  for (;;) {
    try {
      return await work();
    } catch (error) {
      const isSoon = error instanceof Problem && error.status === 503 && error.retryAfter;
      if (!isSoon || performance.now() > until) throw error;
      onWait();
      await pause(error.retryAfter * 1000, signal);
    }
  }
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}

function toQuery(values) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value === null || value === undefined || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) query.append(name, String(one));
  }
  const text = query.toString();
  return text && `?${text}`;
}

async function readJson(answer) {
  const text = await answer.text();
  return text ? JSON.parse(text) : null;
}

async function readProblem(answer) {
  const retryAfter = Number(answer.headers.get("Retry-After")) || null;
  try {
    return { status: answer.status, retryAfter, ...(await answer.json()) };
  } catch {
    return {
      status: answer.status,
      code: "unreadable",
      detail: `The API answers ${answer.status}.`,
    };
  }
}

/** Return an error's words for people. */
export function words(error) {
  if (!(error instanceof Problem)) return error?.message ?? String(error);
  const fields = (error.body.errors ?? []).map((one) => `${one.field}: ${one.problem}`);
  const text = [error.message, ...fields].join("; ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

export function isAborted(error) {
  return error?.name === "AbortError";
}
