/** Numbers, times and payloads as people read them. */

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const finest = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const time = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const dateTime = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });
const DAY_MS = 86_400_000;

export function count(value) {
  return value === null || value === undefined ? "–" : whole.format(value);
}

/** A rate a second: small ones with a decimal. */
export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value !== 0 && Math.abs(value) < 10 ? fine.format(value) : whole.format(value);
}

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 10_000) return `${fine.format(value / 1000)} s`;
  return `${value < 100 ? finest.format(value) : whole.format(value)} ms`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let shown = value;
  while (shown >= 1024 && unit < units.length - 1) {
    shown /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? whole.format(shown) : fine.format(shown)} ${units[unit]}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 90) return `${whole.format(value)} s`;
  if (value < 5_400) return `${whole.format(value / 60)} min`;
  if (value < 129_600) return `${fine.format(value / 3600)} h`;
  return `${fine.format(value / 86_400)} d`;
}

/** A time in this browser's zone; the day only when it is not of the last 24 hours. */
export function moment(text) {
  if (!text) return "–";
  const at = new Date(text);
  if (Number.isNaN(at.getTime())) return String(text);
  return Math.abs(Date.now() - at.getTime()) < DAY_MS ? time.format(at) : dateTime.format(at);
}

/** A message's payload in one line: text, or how many bytes there are. */
export function payloadLine(message) {
  if (message.payload !== null && message.payload !== undefined) {
    return message.payload.length > 200 ? `${message.payload.slice(0, 200)}…` : message.payload;
  }
  return message.payload_bytes === 0 ? "(empty)" : `(${bytes(message.payload_bytes)})`;
}

/** A message's payload to be read: JSON indented, text as it is, else base64. */
export function payloadBlock(message) {
  if (message.payload !== null && message.payload !== undefined) {
    return indented(message.payload) || "(empty)";
  }
  if (message.payload_base64) return `base64: ${message.payload_base64}`;
  return `(${bytes(message.payload_bytes)}, larger than is shown)`;
}

/** JSON with its lines indented; other text as it is. */
export function indented(text) {
  if (!/^\s*[[{]/u.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // which only looks like JSON
  }
}

/** A table cell's value as text. */
export function cell(value) {
  if (value === null || value === undefined) return "null";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
