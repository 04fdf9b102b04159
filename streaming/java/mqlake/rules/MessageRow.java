package mqlake.rules;

import mqlake.Vocabulary;

import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.variant.VariantExpressionEvalUtils$;
import org.apache.spark.types.variant.Variant;
import org.apache.spark.types.variant.VariantUtil;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.unsafe.types.VariantVal;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * A record of mqlake.inbound or mqlake.events as the row that rules are evaluated on; its columns
 * are those of rules/columns.py, then those that RuleCompiler takes out of rules.
 *
 * <p>Each column is computed when a rule asks for it, once.
 */
public final class MessageRow extends GenericInternalRow {
    private static final byte[] EMPTY = new byte[0];

    /** Longer than it takes to compute most, and than others have the processor meanwhile. */
    private static final long LONG_NS = 5 * ProcessorTime.LONG_NS;

    private static final byte[] HEX = "0123456789abcdef".getBytes(StandardCharsets.US_ASCII);

    private Object[] values = new Object[Vocabulary.COLUMN_COUNT];

    /** Of which record a value is. */
    private int[] known = new int[Vocabulary.COLUMN_COUNT];

    private int current;
    private final Lane lane;
    private long begunAt;

    // The record.
    byte[] key;

    /** End of the tenant in the key. */
    int slash;

    public byte[] value;
    byte[] mqtt;
    byte[] id;
    byte[] clientId;
    byte[] username;
    byte[] origin;
    byte[] properties;
    byte[] peerHost;
    public byte[] chain;
    byte[] traceparent;
    public int partition;
    public long offset;
    long timestampMs;

    /** Null for a message. */
    public Event event;

    MessageRow(Lane lane) {
        super(Vocabulary.COLUMN_COUNT);
        this.lane = lane;
    }

    /** Become another record; tell whether it is one that rules know. */
    public boolean begin(
            boolean isEvent,
            int recordPartition,
            long recordOffset,
            long recordTimestampMs,
            byte[] recordKey,
            byte[] recordValue,
            String[] headerNames,
            byte[][] headerValues) {
        begin();
        key = recordKey;
        slash = recordKey == null ? -1 : RuleFilter.slash(recordKey);
        if (slash < 0) {
            return false;
        }
        value = recordValue;
        partition = recordPartition;
        offset = recordOffset;
        timestampMs = recordTimestampMs;
        for (int i = 0; i < headerNames.length; i++) {
            header(headerNames[i], headerValues[i]);
        }
        if (isEvent) {
            event = Event.read(value);
            return event != null;
        }
        return mqtt != null
                && mqtt.length == 3
                && mqtt[0] >= Vocabulary.OLDEST_READ
                && mqtt[0] <= Vocabulary.NEWEST_READ;
    }

    /**
     * Whether so much time has gone since it became this record that something may have taken long.
     */
    public boolean takesLong() {
        return System.nanoTime() - begunAt >= LONG_NS;
    }

    /** Return the topic name of the message, or that of the event. */
    public String topicName() {
        return event != null
                ? event.topicName
                : new String(key, slash + 1, key.length - slash - 1, StandardCharsets.UTF_8);
    }

    /** Return the client identifier: of the publisher, or of whom the event tells. */
    public byte[] clientIdBytes() {
        if (event != null) {
            return Arrays.copyOfRange(key, slash + 1, key.length);
        }
        return clientId == null ? EMPTY : clientId;
    }

    /** Return who has published the message: its user, else its client; of an event the client. */
    public String publisher() {
        byte[] name = username == null || username.length == 0 ? clientIdBytes() : username;
        return new String(name, StandardCharsets.UTF_8);
    }

    /** Return from which address the message or event is; null where none is known. */
    public String address() {
        if (event != null) {
            return event.address();
        }
        return peerHost == null ? null : new String(peerHost, StandardCharsets.UTF_8);
    }

    private void begin() {
        begunAt = System.nanoTime();
        current++;
        if (current == 0) {
            Arrays.fill(known, 0);
            current = 1;
        }
        event = null;
        mqtt = null;
        id = null;
        clientId = null;
        username = null;
        origin = null;
        properties = null;
        peerHost = null;
        chain = null;
        traceparent = null;
    }

    /** Set what a header says; of a name given twice the last counts. */
    private void header(String name, byte[] header) {
        switch (name) {
            case Vocabulary.HEADER_MQTT -> mqtt = header;
            case Vocabulary.HEADER_ID -> id = header;
            case Vocabulary.HEADER_CLIENT_ID -> clientId = header;
            case Vocabulary.HEADER_USERNAME -> username = header;
            case Vocabulary.HEADER_ORIGIN -> origin = header;
            case Vocabulary.HEADER_PROPERTIES -> properties = header;
            case Vocabulary.HEADER_PEERHOST -> peerHost = header;
            case Vocabulary.HEADER_CHAIN -> chain = header;
            case Vocabulary.HEADER_TRACEPARENT -> traceparent = header;
            default -> {} // of no concern to rules
        }
    }

    /** Let the record go, so that a lane in rest holds no payload. */
    void forget() {
        key = null;
        value = null;
        Arrays.fill(values, null);
    }

    @Override
    public Object genericGet(int ordinal) {
        if (ordinal < known.length && known[ordinal] == current) {
            return values[ordinal];
        }
        Object found =
                ordinal < Vocabulary.COLUMN_COUNT
                        ? column(ordinal)
                        : RuleCompiler.sharedColumn(ordinal).evaluate(lane);
        if (ordinal >= values.length) {
            int length = Math.max(ordinal + 1, values.length * 2);
            values = Arrays.copyOf(values, length);
            known = Arrays.copyOf(known, length);
        }
        values[ordinal] = found;
        known[ordinal] = current;
        return found;
    }

    private Object column(int ordinal) {
        return switch (ordinal) {
            case Vocabulary.COLUMN_ID -> hex(id);
            case Vocabulary.COLUMN_TENANT -> UTF8String.fromBytes(key, 0, slash);
            case Vocabulary.COLUMN_TOPIC ->
                    event != null ? UTF8String.fromString(event.topicName) : behindSlash();
            case Vocabulary.COLUMN_CLIENTID -> event != null ? behindSlash() : text(clientId);
            case Vocabulary.COLUMN_USERNAME -> text(username);
            case Vocabulary.COLUMN_TIMESTAMP -> timestampMs;
            case Vocabulary.COLUMN_PEERHOST -> text(peerHost);
            case Vocabulary.COLUMN_GATEWAY -> origin(false);
            case Vocabulary.COLUMN_SITE -> origin(true);
            case Vocabulary.COLUMN_PROPERTIES -> properties == null ? null : json(properties);
            case Vocabulary.COLUMN_EVENT ->
                    event == null ? null : UTF8String.fromString(event.name);
            case Vocabulary.COLUMN_EVENT_FIELDS -> event == null ? null : event.fields;
            case Vocabulary.COLUMN_LOG_PARTITION -> partition;
            case Vocabulary.COLUMN_LOG_OFFSET -> offset;
            default -> event != null ? null : messageColumn(ordinal);
        };
    }

    /** Columns that events do not have. */
    private Object messageColumn(int ordinal) {
        return switch (ordinal) {
            case Vocabulary.COLUMN_PAYLOAD -> value == null ? EMPTY : value;
            case Vocabulary.COLUMN_PAYLOAD_JSON -> json(value == null ? EMPTY : value);
            case Vocabulary.COLUMN_QOS -> mqtt[2] & Vocabulary.FLAG_QOS;
            case Vocabulary.COLUMN_RETAIN -> (mqtt[2] & Vocabulary.FLAG_RETAIN) != 0;
            case Vocabulary.COLUMN_DUP -> (mqtt[2] & Vocabulary.FLAG_DUP) != 0;
            case Vocabulary.COLUMN_PROTOCOL_LEVEL -> (int) mqtt[1];
            case Vocabulary.COLUMN_PUBLISH_RECEIVED_AT -> timestampMs;
            default -> throw new IllegalArgumentException("there is no column " + ordinal);
        };
    }

    private UTF8String behindSlash() {
        return UTF8String.fromBytes(key, slash + 1, key.length - slash - 1);
    }

    /** The part of `<site>/<gateway>` that is asked for. */
    private UTF8String origin(boolean site) {
        if (origin == null) {
            return null;
        }
        int at = 0;
        while (at < origin.length && origin[at] != '/') {
            at++;
        }
        if (site) {
            return UTF8String.fromBytes(origin, 0, at);
        }
        return at == origin.length
                ? null
                : UTF8String.fromBytes(origin, at + 1, origin.length - at - 1);
    }

    private static UTF8String text(byte[] bytes) {
        return bytes == null ? null : UTF8String.fromBytes(bytes);
    }

    private static UTF8String hex(byte[] bytes) {
        if (bytes == null) {
            return null;
        }
        byte[] digits = new byte[bytes.length * 2];
        for (int i = 0; i < bytes.length; i++) {
            digits[2 * i] = HEX[(bytes[i] >> 4) & 15];
            digits[2 * i + 1] = HEX[bytes[i] & 15];
        }
        return UTF8String.fromBytes(digits);
    }

    /** As try_parse_json does it; null when it is not JSON. */
    static VariantVal json(byte[] bytes) {
        return VariantExpressionEvalUtils$.MODULE$.parseJson(
                UTF8String.fromBytes(bytes), false, false, true);
    }

    /** What is read of every event, because its topic is in it. */
    public static final class Event {
        final VariantVal fields;
        public final String name;
        public final String topicName;

        private Event(VariantVal fields, String name) {
            this.fields = fields;
            this.name = name;
            this.topicName = topicName(name);
        }

        /**
         * Return from where the client of the event is (`peer` has a port); null where none is
         * said.
         */
        String address() {
            Variant peer =
                    new Variant(fields.getValue(), fields.getMetadata()).getFieldByKey("peer");
            if (peer == null || peer.getType() != VariantUtil.Type.STRING) {
                return null;
            }
            return peer.getString().substring(0, Math.max(peer.getString().lastIndexOf(':'), 0));
        }

        /** Return the topic of events of a name. */
        static String topicName(String name) {
            return Vocabulary.EVENTS_PREFIX + name.replace('.', '_');
        }

        /** Read an event; null when it is none. */
        public static Event read(byte[] value) {
            VariantVal fields = value == null ? null : json(value);
            if (fields == null) {
                return null;
            }
            try {
                Variant name =
                        new Variant(fields.getValue(), fields.getMetadata()).getFieldByKey("event");
                return name == null ? null : new Event(fields, name.getString());
            } catch (RuntimeException error) { // not an object, or the name is not a string
                return null;
            }
        }
    }
}
