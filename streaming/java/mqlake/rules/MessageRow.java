package mqlake.rules;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.variant.VariantExpressionEvalUtils$;
import org.apache.spark.types.variant.Variant;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.unsafe.types.VariantVal;

/**
 * A record of mqlake.inbound or mqlake.events as the row that rules are evaluated on; its columns are
 * those of rules/columns.py, then those that RuleCompiler takes out of rules.
 *
 * Each column is computed when a rule asks for it, once.
 */
public final class MessageRow extends GenericInternalRow {
    static final String COLUMNS =
            "id STRING, tenant STRING, topic STRING, clientid STRING, username STRING, "
                    + "payload BINARY, payload_json VARIANT, qos INT, retain BOOLEAN, dup BOOLEAN, "
                    + "protocol_level INT, publish_received_at BIGINT, timestamp BIGINT, "
                    + "peerhost STRING, gateway STRING, site STRING, properties VARIANT, "
                    + "event STRING, event_fields VARIANT, log_partition INT, log_offset BIGINT";
    static final int COLUMN_COUNT = 21;
    static final int PAYLOAD = 5;

    /** As `READ_VERSIONS` of mqlake/record_versions.py. */
    private static final byte OLDEST_READ = 1;
    private static final byte NEWEST_READ = 4;
    private static final int FLAG_QOS = 3;
    private static final int FLAG_RETAIN = 4;
    private static final int FLAG_DUP = 8;
    private static final byte[] EMPTY = new byte[0];
    private static final byte[] HEX = "0123456789abcdef".getBytes(StandardCharsets.US_ASCII);

    private Object[] values = new Object[COLUMN_COUNT];
    /** Of which record a value is. */
    private int[] known = new int[COLUMN_COUNT];
    private int current;
    private final Lane lane;

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
        super(COLUMN_COUNT);
        this.lane = lane;
    }

    /** Become another record; tell whether it is one that rules know. */
    public boolean begin(
            boolean isEvent, int recordPartition, long recordOffset, long recordTimestampMs,
            byte[] recordKey, byte[] recordValue, String[] headerNames, byte[][] headerValues) {
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
        return mqtt != null && mqtt.length == 3 && mqtt[0] >= OLDEST_READ && mqtt[0] <= NEWEST_READ;
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

    private void begin() {
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
            case "mqtt":
                mqtt = header;
                break;
            case "id":
                id = header;
                break;
            case "client_id":
                clientId = header;
                break;
            case "username":
                username = header;
                break;
            case "origin":
                origin = header;
                break;
            case "properties":
                properties = header;
                break;
            case "peerhost":
                peerHost = header;
                break;
            case "chain":
                chain = header;
                break;
            case "traceparent":
                traceparent = header;
                break;
            default:
                break; // of no concern to rules
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
        Object found = ordinal < COLUMN_COUNT
                ? column(ordinal) : RuleCompiler.sharedColumn(ordinal).evaluate(lane);
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
        switch (ordinal) {
            case 0:
                return hex(id);
            case 1:
                return UTF8String.fromBytes(key, 0, slash);
            case 2:
                return event != null
                        ? UTF8String.fromString(event.topicName)
                        : UTF8String.fromBytes(key, slash + 1, key.length - slash - 1);
            case 3:
                return event != null
                        ? UTF8String.fromBytes(key, slash + 1, key.length - slash - 1)
                        : text(clientId);
            case 4:
                return text(username);
            case PAYLOAD:
                return event != null ? null : value == null ? EMPTY : value;
            case 6:
                return event != null ? null : json(value == null ? EMPTY : value);
            case 7:
                return event != null ? null : Integer.valueOf(mqtt[2] & FLAG_QOS);
            case 8:
                return event != null ? null : Boolean.valueOf((mqtt[2] & FLAG_RETAIN) != 0);
            case 9:
                return event != null ? null : Boolean.valueOf((mqtt[2] & FLAG_DUP) != 0);
            case 10:
                return event != null ? null : Integer.valueOf(mqtt[1]);
            case 11:
                return event != null ? null : Long.valueOf(timestampMs);
            case 12:
                return Long.valueOf(timestampMs);
            case 13:
                return text(peerHost);
            case 14:
                return origin(false);
            case 15:
                return origin(true);
            case 16:
                return properties == null ? null : json(properties);
            case 17:
                return event == null ? null : UTF8String.fromString(event.name);
            case 18:
                return event == null ? null : event.fields;
            case 19:
                return Integer.valueOf(partition);
            default:
                return Long.valueOf(offset);
        }
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
                ? null : UTF8String.fromBytes(origin, at + 1, origin.length - at - 1);
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
            this.topicName = "$events/" + name.replace('.', '_');
        }

        /** Read an event; null when it is none. */
        public static Event read(byte[] value) {
            VariantVal fields = value == null ? null : json(value);
            if (fields == null) {
                return null;
            }
            try {
                Variant name = new Variant(fields.getValue(), fields.getMetadata())
                        .getFieldByKey("event");
                return name == null ? null : new Event(fields, name.getString());
            } catch (RuntimeException error) { // not an object, or the name is not a string
                return null;
            }
        }
    }
}
