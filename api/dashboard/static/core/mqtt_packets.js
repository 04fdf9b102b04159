/**
 * MQTT 5.0 packets to bytes and back: as much of them as a client for tests needs.
 *
 * Bytes and objects only, no socket. Numbers in brackets are sections of the specification.
 */

export const TYPES = {
  CONNECT: 1, CONNACK: 2, PUBLISH: 3, PUBACK: 4, PUBREC: 5, PUBREL: 6, PUBCOMP: 7,
  SUBSCRIBE: 8, SUBACK: 9, UNSUBSCRIBE: 10, UNSUBACK: 11, PINGREQ: 12, PINGRESP: 13, DISCONNECT: 14,
}; // prettier-ignore
const NAMES = Object.fromEntries(Object.entries(TYPES).map(([name, type]) => [type, name]));

/** Identifier: [name, type of its value] [2.2.2.2]. */
const PROPERTIES = {
  1: ["payload_format_indicator", "byte"],
  2: ["message_expiry_interval", "four"],
  3: ["content_type", "text"],
  8: ["response_topic", "text"],
  9: ["correlation_data", "binary"],
  11: ["subscription_identifier", "variable"],
  17: ["session_expiry_interval", "four"],
  18: ["assigned_client_identifier", "text"],
  19: ["server_keep_alive", "two"],
  21: ["authentication_method", "text"],
  22: ["authentication_data", "binary"],
  23: ["request_problem_information", "byte"],
  24: ["will_delay_interval", "four"],
  25: ["request_response_information", "byte"],
  26: ["response_information", "text"],
  28: ["server_reference", "text"],
  31: ["reason_string", "text"],
  33: ["receive_maximum", "two"],
  34: ["topic_alias_maximum", "two"],
  35: ["topic_alias", "two"],
  36: ["maximum_qos", "byte"],
  37: ["retain_available", "byte"],
  38: ["user_property", "pair"],
  39: ["maximum_packet_size", "four"],
  40: ["wildcard_subscription_available", "byte"],
  41: ["subscription_identifier_available", "byte"],
  42: ["shared_subscription_available", "byte"],
};
const IDENTIFIERS = Object.fromEntries(
  Object.entries(PROPERTIES).map(([id, [name, type]]) => [name, [Number(id), type]]),
);

const encoder = new TextEncoder();
const strict = new TextDecoder("utf-8", { fatal: true });

/** What is not MQTT. */
export class MalformedPacket extends Error {}

class Writer {
  bytes = [];

  byte(value) {
    this.bytes.push(value & 0xff);
    return this;
  }
  two(value) {
    return this.byte(value >> 8).byte(value);
  }
  four(value) {
    return this.two(Math.floor(value / 65_536)).two(value & 0xffff);
  }
  variable(value) {
    let left = value;
    do {
      const digit = left % 128;
      left = Math.floor(left / 128);
      this.byte(left > 0 ? digit | 128 : digit);
    } while (left > 0);
    return this;
  }
  raw(bytes) {
    for (const one of bytes) this.bytes.push(one);
    return this;
  }
  binary(bytes) {
    return this.two(bytes.length).raw(bytes);
  }
  text(text) {
    return this.binary(encoder.encode(text));
  }
  pair([name, value]) {
    return this.text(name).text(value);
  }
  /** Properties by name; a list of pairs for `user_property`; undefined and empty are left out. */
  properties(given = {}) {
    const inner = new Writer();
    for (const [name, value] of Object.entries(given)) {
      if (value === undefined || value === null || value === "") continue;
      const [id, type] = IDENTIFIERS[name];
      for (const one of name === "user_property" ? value : [value]) inner.byte(id)[type](one);
    }
    return this.variable(inner.bytes.length).raw(inner.bytes);
  }
  packet(type, flags = 0) {
    const body = this.bytes;
    return Uint8Array.from(
      new Writer()
        .byte((type << 4) | flags)
        .variable(body.length)
        .raw(body).bytes,
    );
  }
}

class Reader {
  #at = 0;
  constructor(bytes) {
    this.bytes = bytes;
  }
  get isAtEnd() {
    return this.#at >= this.bytes.length;
  }
  byte() {
    if (this.isAtEnd) throw new MalformedPacket("the packet ends too early");
    this.#at += 1;
    return this.bytes[this.#at - 1];
  }
  two() {
    return this.byte() * 256 + this.byte();
  }
  four() {
    return this.two() * 65_536 + this.two();
  }
  variable() {
    let value = 0;
    for (let place = 0; place < 4; place += 1) {
      const digit = this.byte();
      value += (digit & 127) * 128 ** place;
      if (digit < 128) return value;
    }
    throw new MalformedPacket("a variable byte integer is longer than four bytes");
  }
  raw(length) {
    if (this.#at + length > this.bytes.length)
      throw new MalformedPacket("the packet ends too early");
    this.#at += length;
    return this.bytes.slice(this.#at - length, this.#at);
  }
  rest() {
    return this.raw(this.bytes.length - this.#at);
  }
  binary() {
    return this.raw(this.two());
  }
  text() {
    try {
      return strict.decode(this.binary());
    } catch (error) {
      if (error instanceof MalformedPacket) throw error;
      throw new MalformedPacket("a text is not UTF-8");
    }
  }
  pair() {
    return [this.text(), this.text()];
  }
  properties() {
    const found = {};
    if (this.isAtEnd) return found;
    const inner = new Reader(this.raw(this.variable()));
    while (!inner.isAtEnd) {
      const id = inner.variable();
      if (!PROPERTIES[id]) throw new MalformedPacket(`there is no property ${id}`);
      const [name, type] = PROPERTIES[id];
      const value = inner[type]();
      if (name === "user_property") (found[name] ??= []).push(value);
      else found[name] = value;
    }
    return found;
  }
}

/** CONNECT [3.1]. `will` has `topic`, `payload` (bytes), `qos`, `retain`. */
export function connect({
  clientId,
  username,
  password,
  cleanStart,
  keepAlive,
  sessionExpiry,
  will,
}) {
  const flags =
    (username ? 0x80 : 0) |
    (password ? 0x40 : 0) |
    (will ? 0x04 | (will.qos << 3) | (will.retain ? 0x20 : 0) : 0) |
    (cleanStart ? 0x02 : 0);
  const body = new Writer().text("MQTT").byte(5).byte(flags).two(keepAlive);
  body.properties({ session_expiry_interval: sessionExpiry || undefined, receive_maximum: 100 });
  body.text(clientId);
  if (will) body.properties().text(will.topic).binary(will.payload);
  if (username) body.text(username);
  if (password) body.text(password);
  return body.packet(TYPES.CONNECT);
}

/** PUBLISH [3.3]; `payload` is bytes, `packetId` counts with QoS 1 and 2 only. */
export function publish({
  topic,
  payload,
  qos = 0,
  retain = false,
  packetId = 0,
  properties = {},
}) {
  const body = new Writer().text(topic);
  if (qos > 0) body.two(packetId);
  return body
    .properties(properties)
    .raw(payload)
    .packet(TYPES.PUBLISH, (qos << 1) | (retain ? 1 : 0));
}

/** PUBACK, PUBREC, PUBREL and PUBCOMP [3.4 to 3.7]: success has no more than its identifier. */
export function acknowledge(name, packetId, reasonCode = 0) {
  const body = new Writer().two(packetId);
  if (reasonCode) body.byte(reasonCode);
  return body.packet(TYPES[name], name === "PUBREL" ? 2 : 0);
}

/** SUBSCRIBE [3.8]. */
export function subscribe({
  packetId,
  filter,
  qos = 0,
  noLocal = false,
  retainAsPublished = false,
  retainHandling = 0,
}) {
  const options = qos | (noLocal ? 4 : 0) | (retainAsPublished ? 8 : 0) | (retainHandling << 4);
  return new Writer()
    .two(packetId)
    .properties()
    .text(filter)
    .byte(options)
    .packet(TYPES.SUBSCRIBE, 2);
}

/** UNSUBSCRIBE [3.10]. */
export function unsubscribe({ packetId, filter }) {
  return new Writer().two(packetId).properties().text(filter).packet(TYPES.UNSUBSCRIBE, 2);
}

export const PINGREQ = new Writer().packet(TYPES.PINGREQ);
/** DISCONNECT [3.14] of a normal end. */
export const DISCONNECT = new Writer().packet(TYPES.DISCONNECT);

/** Bytes in, packets out: cut anywhere. */
export class Decoder {
  #kept = new Uint8Array(0);

  /** Return the packets that are complete now, in order. */
  receive(bytes) {
    const joined = new Uint8Array(this.#kept.length + bytes.length);
    joined.set(this.#kept);
    joined.set(bytes, this.#kept.length);
    const found = [];
    let at = 0;
    for (;;) {
      const header = fixedHeader(joined, at);
      if (header === null || header.end > joined.length) break;
      found.push(decode(joined[at], joined.subarray(header.begin, header.end)));
      at = header.end;
    }
    this.#kept = joined.slice(at);
    return found;
  }
}

/** Return where the body of the packet at a place is; null: that is not known yet. */
function fixedHeader(bytes, at) {
  let length = 0;
  for (let place = 0; place < 4; place += 1) {
    const digit = bytes[at + 1 + place];
    if (digit === undefined) return null;
    length += (digit & 127) * 128 ** place;
    if (digit < 128) return { begin: at + 2 + place, end: at + 2 + place + length };
  }
  throw new MalformedPacket("the remaining length is longer than four bytes");
}

function decode(first, body) {
  const name = NAMES[first >> 4];
  const reader = new Reader(body);
  switch (name) {
    case "CONNACK":
      return {
        name,
        sessionPresent: (reader.byte() & 1) === 1,
        reasonCode: reader.byte(),
        properties: reader.properties(),
      };
    case "PUBLISH": {
      const qos = (first >> 1) & 3;
      const topic = reader.text();
      const packetId = qos > 0 ? reader.two() : 0;
      const properties = reader.properties();
      return {
        name,
        qos,
        retain: (first & 1) === 1,
        dup: (first & 8) === 8,
        topic,
        packetId,
        properties,
        payload: reader.rest(),
      };
    }
    case "PUBACK":
    case "PUBREC":
    case "PUBREL":
    case "PUBCOMP":
      return {
        name,
        packetId: reader.two(),
        reasonCode: reader.isAtEnd ? 0 : reader.byte(),
        properties: reader.properties(),
      };
    case "SUBACK":
    case "UNSUBACK":
      return {
        name,
        packetId: reader.two(),
        properties: reader.properties(),
        reasonCodes: [...reader.rest()],
      };
    case "PINGRESP":
      return { name };
    case "DISCONNECT":
      return {
        name,
        reasonCode: reader.isAtEnd ? 0 : reader.byte(),
        properties: reader.properties(),
      };
    default:
      throw new MalformedPacket(
        `a server does not send ${name ?? `packets of type ${first >> 4}`}`,
      );
  }
}
