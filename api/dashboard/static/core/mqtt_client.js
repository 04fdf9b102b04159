/** A client of MQTT 5.0 over WebSocket, for trying things out: nothing is sent again, nothing kept. */

import {
  acknowledge,
  connect,
  Decoder,
  DISCONNECT,
  PINGREQ,
  publish,
  subscribe,
  unsubscribe,
} from "./mqtt_packets.js";

const KEEP_ALIVE_SECONDS = 30;
const ANSWER_MS = 15_000;
const MOST_PACKET_ID = 65_535;

/** Words for the reason codes that somebody meets who tries things out [2.4]. */
const REASONS = {
  0x80: "unspecified error", 0x81: "malformed packet", 0x82: "protocol error", 0x83: "implementation specific error",
  0x84: "protocol version not supported", 0x85: "client identifier not valid", 0x86: "bad user name or password",
  0x87: "not authorized", 0x88: "server unavailable", 0x89: "server busy", 0x8a: "banned", 0x8b: "server shutting down",
  0x8c: "bad authentication method", 0x8d: "keep alive timeout", 0x8e: "session taken over", 0x8f: "topic filter invalid",
  0x90: "topic name invalid", 0x91: "packet identifier in use", 0x93: "receive maximum exceeded", 0x95: "packet too large",
  0x96: "message rate too high", 0x97: "quota exceeded", 0x98: "administrative action", 0x99: "payload format invalid",
  0x9a: "retain not supported", 0x9b: "QoS not supported", 0x9c: "use another server", 0x9d: "server moved",
  0x9e: "shared subscriptions not supported", 0x9f: "connection rate exceeded", 0xa0: "maximum connect time",
}; // prettier-ignore

/** Return a reason code in words. */
export function reason(code, properties = {}) {
  const text = REASONS[code] ?? "";
  return [`0x${code.toString(16).padStart(2, "0")}`, text, properties.reason_string]
    .filter(Boolean)
    .join(", ");
}

export class MqttClient {
  /** Called with each PUBLISH that comes. */
  onMessage = () => {};
  /** Called once, with why, when the connection is over. */
  onClose = () => {};

  #socket = null;
  #decoder = new Decoder();
  #lastPacketId = 0;
  /** What is waited for: `CONNACK`, or the packet identifier, with what then happens. */
  #waiting = new Map();
  #timer = 0;
  #why = "";
  /** Identifiers of QoS 2 messages that came and are not released: they count once [4.3.3]. */
  #received = new Set();

  /**
   * Connect; resolve to the CONNACK.
   *
   * @param {string} url ws://… or wss://…
   * @param {Object} options As `connect` of the packets takes them, without `keepAlive`.
   */
  open(url, options) {
    const socket = new WebSocket(url, ["mqtt"]);
    this.#socket = socket;
    socket.binaryType = "arraybuffer";
    const connected = this.#await("CONNACK");
    socket.onopen = () => socket.send(connect({ ...options, keepAlive: KEEP_ALIVE_SECONDS }));
    socket.onmessage = (event) => {
      try {
        for (const packet of this.#decoder.receive(new Uint8Array(event.data))) this.#take(packet);
      } catch (error) {
        this.#end(error.message);
      }
    };
    socket.onclose = () => this.#over(this.#why || "the connection was closed");
    socket.onerror = () => (this.#why ||= `${url} cannot be reached`);
    return connected.then((packet) => {
      if (packet.reasonCode >= 0x80) {
        this.#end(`refused: ${reason(packet.reasonCode, packet.properties)}`);
        throw new Error(`Refused: ${reason(packet.reasonCode, packet.properties)}`);
      }
      const keepAlive = packet.properties.server_keep_alive ?? KEEP_ALIVE_SECONDS;
      if (keepAlive) this.#timer = setInterval(() => this.#send(PINGREQ), (keepAlive * 1000) / 2);
      return packet;
    });
  }

  /** Publish; resolve to the reason code when the server has it (at once with QoS 0). */
  async publish(message) {
    if (!message.qos) {
      this.#send(publish(message));
      return 0;
    }
    const packetId = this.#packetId();
    const answered = this.#await(packetId);
    this.#send(publish({ ...message, packetId }));
    const first = await answered;
    if (first.name !== "PUBREC" || first.reasonCode >= 0x80) return first.reasonCode;
    const completed = this.#await(packetId);
    this.#send(acknowledge("PUBREL", packetId));
    return (await completed).reasonCode;
  }

  /** Subscribe; resolve to the reason code. */
  async subscribe(options) {
    const packetId = this.#packetId();
    const answered = this.#await(packetId);
    this.#send(subscribe({ ...options, packetId }));
    return (await answered).reasonCodes[0];
  }

  async unsubscribe(filter) {
    const packetId = this.#packetId();
    const answered = this.#await(packetId);
    this.#send(unsubscribe({ packetId, filter }));
    return (await answered).reasonCodes[0];
  }

  close() {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(DISCONNECT);
    this.#end("disconnected");
  }

  #take(packet) {
    switch (packet.name) {
      case "CONNACK":
        this.#answer("CONNACK", packet);
        break;
      case "PUBLISH":
        this.#receive(packet);
        break;
      case "PUBREL":
        this.#received.delete(packet.packetId);
        this.#send(acknowledge("PUBCOMP", packet.packetId));
        break;
      case "DISCONNECT":
        this.#end(`the server ended it: ${reason(packet.reasonCode, packet.properties)}`);
        break;
      case "PINGRESP":
        break;
      default:
        this.#answer(packet.packetId, packet);
    }
  }

  #receive(packet) {
    if (packet.qos === 2) {
      const isNew = !this.#received.has(packet.packetId);
      this.#received.add(packet.packetId);
      this.#send(acknowledge("PUBREC", packet.packetId));
      if (!isNew) return;
    } else if (packet.qos === 1) {
      this.#send(acknowledge("PUBACK", packet.packetId));
    }
    this.onMessage(packet);
  }

  #send(bytes) {
    if (this.#socket?.readyState !== WebSocket.OPEN) throw new Error("Not connected.");
    this.#socket.send(bytes);
  }

  #packetId() {
    do {
      this.#lastPacketId = (this.#lastPacketId % MOST_PACKET_ID) + 1;
    } while (this.#waiting.has(this.#lastPacketId));
    return this.#lastPacketId;
  }

  #await(key) {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#waiting.delete(key);
        reject(new Error(`No answer within ${ANSWER_MS / 1000} s.`));
      }, ANSWER_MS);
      this.#waiting.set(key, { resolve, reject, timer });
    });
  }

  #answer(key, packet) {
    const waiting = this.#waiting.get(key);
    if (!waiting) return;
    clearTimeout(waiting.timer);
    this.#waiting.delete(key);
    waiting.resolve(packet);
  }

  #end(why) {
    this.#why ||= why;
    this.#socket?.close();
    this.#over(this.#why);
  }

  #over(why) {
    clearInterval(this.#timer);
    for (const { reject, timer } of this.#waiting.values()) {
      clearTimeout(timer);
      reject(new Error(why));
    }
    this.#waiting.clear();
    const { onClose } = this;
    this.onClose = () => {};
    onClose(why);
  }
}
