package mqlake.decoding;

import com.fasterxml.jackson.databind.JsonNode;

import mqlake.spark.VariantOutput;

import org.apache.spark.unsafe.types.VariantVal;

import java.time.DateTimeException;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Decodes Protobuf's binary encoding, to what its mapping to JSON says but for names of fields,
 * which stay as the schema has them, and 64-bit integers, which stay numbers.
 *
 * <p>The layout is made by rules/schemas/protobuf.py: messages and enums by number, the payload's
 * message the first. A message is first read, as its fields come in any order, and then written.
 */
final class ProtobufDecoder implements PayloadDecoder.Format {
    // Types of fields, by the numbers of google/protobuf/descriptor.proto.
    static final int DOUBLE = 1;
    static final int FLOAT = 2;
    static final int INT64 = 3;
    static final int UINT64 = 4;
    static final int INT32 = 5;
    static final int FIXED64 = 6;
    static final int FIXED32 = 7;
    static final int BOOL = 8;
    static final int STRING = 9;
    static final int GROUP = 10;
    static final int MESSAGE = 11;
    static final int BYTES = 12;
    static final int UINT32 = 13;
    static final int ENUM = 14;
    static final int SFIXED32 = 15;
    static final int SFIXED64 = 16;
    static final int SINT32 = 17;
    static final int SINT64 = 18;

    private static final int VARINT = 0;
    private static final int EIGHT_BYTES = 1;
    private static final int LENGTH = 2;
    private static final int BEGIN_GROUP = 3;
    private static final int END_GROUP = 4;
    private static final int FOUR_BYTES = 5;
    private static final int[] WIRE_TYPES = {
        -1,
        EIGHT_BYTES,
        FOUR_BYTES,
        VARINT,
        VARINT,
        VARINT,
        EIGHT_BYTES,
        FOUR_BYTES,
        VARINT,
        LENGTH,
        BEGIN_GROUP,
        LENGTH,
        LENGTH,
        VARINT,
        VARINT,
        FOUR_BYTES,
        EIGHT_BYTES,
        VARINT,
        VARINT,
    };
    private static final String[] WIRE_NAMES = {
        "a number", "8 bytes", "a length", "a group", "the end of a group", "4 bytes",
    };

    /** Numbers of fields below it are looked up in an array. */
    private static final int MOST_DENSE = 1024;

    static final class Field {
        int number;
        String name;
        int type;

        /** `optional`, `implicit` (absent means zero), `required`, `repeated` or `map`. */
        String presence;

        boolean isRepeated;
        Type of;
        int index;
    }

    /** A message or an enum. */
    static final class Type {
        String name;
        Field[] fields;
        private Field[] dense;
        private HashMap<Integer, Field> sparse;

        /** Of an enum; null for a message. */
        HashMap<Integer, String> symbols;

        Field field(long number) {
            if (number < dense.length) {
                return dense[(int) number];
            }
            return sparse.get((int) number);
        }
    }

    private final Type root;

    ProtobufDecoder(JsonNode layout) {
        root = types(layout.get("types"))[0];
    }

    static Type[] types(JsonNode listed) {
        Type[] types = new Type[listed.size()];
        for (int i = 0; i < types.length; i++) {
            types[i] = new Type();
        }
        for (int i = 0; i < types.length; i++) {
            fill(types[i], listed.get(i), types);
        }
        return types;
    }

    private static void fill(Type type, JsonNode node, Type[] types) {
        type.name = node.get("name").asText();
        if (node.get("symbols") != null) {
            type.symbols = new HashMap<>();
            for (Map.Entry<String, JsonNode> entry : node.get("symbols").properties()) {
                type.symbols.put(Integer.valueOf(entry.getKey()), entry.getValue().asText());
            }
            return;
        }
        JsonNode fields = node.get("fields");
        type.fields = new Field[fields.size()];
        type.sparse = new HashMap<>();
        int most = 0;
        for (int i = 0; i < type.fields.length; i++) {
            JsonNode said = fields.get(i);
            Field field = new Field();
            field.number = said.get(0).asInt();
            field.name = said.get(1).asText();
            field.type = said.get(2).asInt();
            field.presence = said.get(3).asText();
            field.isRepeated = field.presence.equals("repeated") || field.presence.equals("map");
            int of = said.get(4).asInt();
            field.of = of < 0 ? null : types[of];
            field.index = i;
            type.fields[i] = field;
            if (field.number < MOST_DENSE) {
                most = Math.max(most, field.number);
            } else {
                type.sparse.put(Integer.valueOf(field.number), field);
            }
        }
        type.dense = new Field[most + 1];
        for (int i = 0; i < type.fields.length; i++) {
            if (type.fields[i].number < MOST_DENSE) {
                type.dense[type.fields[i].number] = type.fields[i];
            }
        }
    }

    @Override
    public VariantVal decode(byte[] payload) {
        VariantWriter out = new VariantWriter();
        message(root, read(root, new WireReader(payload), out, -1, 0), out);
        return out.result();
    }

    // Reading: a value for each field of the type, null where it does not come.

    static ProtobufMessage read(Type type, WireReader in, VariantWriter out, int group, int depth) {
        if (depth > VariantWriter.MOST_DEPTH) {
            throw new Undecodable("messages are nested too deeply");
        }
        out.countPlaces(type.fields.length);
        ProtobufMessage message = new ProtobufMessage(type.fields.length);
        while (!in.isAtEnd()) {
            long tag = in.varint();
            int wire = (int) tag & 7;
            long number = tag >>> 3;
            if (number == 0 || number > 536870911L || wire > FOUR_BYTES) {
                throw new Undecodable("there is no field " + number + " of wire type " + wire);
            }
            if (wire == END_GROUP) {
                if (number != group) {
                    throw new Undecodable("a group ends that has not begun");
                }
                return message;
            }
            Field field = type.field(number);
            if (field == null) {
                skip(wire, number, in, depth);
            } else if (wire == WIRE_TYPES[field.type]) {
                put(message, field, value(field, in, out, depth), out);
            } else if (wire == LENGTH
                    && field.isRepeated
                    && WIRE_TYPES[field.type] != BEGIN_GROUP) {
                packed(message, field, in, out, depth);
            } else {
                throw new Undecodable(
                        "field "
                                + field.name
                                + " is "
                                + WIRE_NAMES[wire]
                                + ", expected "
                                + WIRE_NAMES[WIRE_TYPES[field.type]]);
            }
        }
        if (group >= 0) {
            throw new Undecodable("a group does not end");
        }
        return message;
    }

    private static void put(ProtobufMessage message, Field field, Object value, VariantWriter out) {
        if (field.isRepeated) {
            out.count();
            message.add(field.index, value);
        } else {
            message.set(field.index, value);
        }
    }

    private static void packed(
            ProtobufMessage message, Field field, WireReader in, VariantWriter out, int depth) {
        int length = in.length(in.varint());
        int end = in.end;
        in.end = in.at + length;
        while (!in.isAtEnd()) {
            put(message, field, value(field, in, out, depth), out);
        }
        in.end = end;
    }

    private static Object value(Field field, WireReader in, VariantWriter out, int depth) {
        return switch (field.type) {
            case DOUBLE -> Double.longBitsToDouble(in.fixed64());
            case FLOAT -> Float.intBitsToFloat(in.fixed32());
            case INT64, UINT64 -> in.varint();
            case INT32, ENUM -> (long) (int) in.varint();
            case UINT32 -> in.varint() & 0xffffffffL;
            case FIXED64, SFIXED64 -> in.fixed64();
            case FIXED32 -> in.fixed32() & 0xffffffffL;
            case SFIXED32 -> (long) in.fixed32();
            case SINT32 -> (long) (int) in.zigzag();
            case SINT64 -> in.zigzag();
            case BOOL -> in.varint() != 0;
            case STRING -> in.text(in.length(in.varint()));
            case BYTES -> in.bytes(in.length(in.varint()));
            case GROUP -> read(field.of, in, out, field.number, depth + 1);
            default -> {
                int length = in.length(in.varint());
                int end = in.end;
                in.end = in.at + length;
                ProtobufMessage inner = read(field.of, in, out, -1, depth + 1);
                in.end = end;
                yield inner;
            }
        };
    }

    private static void skip(int wire, long number, WireReader in, int depth) {
        switch (wire) {
            case VARINT -> in.varint();
            case EIGHT_BYTES -> in.skip(8);
            case LENGTH -> in.skip(in.length(in.varint()));
            case FOUR_BYTES -> in.skip(4);
            default -> skipGroup(number, in, depth);
        }
    }

    private static void skipGroup(long number, WireReader in, int depth) {
        if (depth > VariantWriter.MOST_DEPTH) {
            throw new Undecodable("messages are nested too deeply");
        }
        while (true) {
            long tag = in.varint();
            int wire = (int) tag & 7;
            if (wire == END_GROUP) {
                if (tag >>> 3 != number) {
                    throw new Undecodable("a group ends that has not begun");
                }
                return;
            }
            if (wire > FOUR_BYTES) {
                throw new Undecodable("there is no wire type " + wire);
            }
            skip(wire, tag >>> 3, in, depth + 1);
        }
    }

    // Writing.

    private static void message(Type type, ProtobufMessage message, VariantWriter out) {
        if (type.name.startsWith("google.protobuf.") && wellKnown(type, message, out)) {
            return;
        }
        int start = out.position();
        VariantOutput.Fields fields = new VariantOutput.Fields(type.fields.length);
        for (Field field : type.fields) {
            boolean isThere = message.has(field.index);
            if (!isThere && field.presence.equals("optional")) {
                continue;
            }
            if (!isThere && field.presence.equals("required")) {
                throw new Undecodable("field " + field.name + " of " + type.name + " is missing");
            }
            out.key(field.name, start, fields);
            if (field.presence.equals("map")) {
                map(field, message.all(field.index), out);
            } else if (field.isRepeated) {
                array(field, message.all(field.index), out);
            } else {
                write(field, message.get(field.index), out);
            }
        }
        out.endObject(start, fields);
    }

    private static void array(Field field, List<Object> values, VariantWriter out) {
        int start = out.position();
        ArrayList<Integer> offsets = new ArrayList<>();
        for (Object value : values) {
            out.element(start, offsets);
            write(field, value, out);
        }
        out.endArray(start, offsets);
    }

    private static void map(Field field, List<ProtobufMessage> entries, VariantWriter out) {
        LinkedHashMap<String, Object> last = new LinkedHashMap<>();
        Field key = field.of.field(1);
        Field value = field.of.field(2);
        for (ProtobufMessage entry : entries) {
            last.put(mapKey(key, entry), entry.get(value.index));
        }
        int start = out.position();
        VariantOutput.Fields fields = new VariantOutput.Fields();
        last.forEach(
                (name, found) -> {
                    out.key(name, start, fields);
                    write(value, found, out);
                });
        out.endObject(start, fields);
    }

    private static String mapKey(Field key, ProtobufMessage entry) {
        return switch (key.type) {
            case STRING -> entry.has(key.index) ? entry.text(key.index) : "";
            case BOOL -> Boolean.toString(entry.flag(key.index));
            case UINT64, FIXED64 -> Long.toUnsignedString(entry.number(key.index));
            default -> Long.toString(entry.number(key.index));
        };
    }

    /** Write one value; null is the type's zero. */
    private static void write(Field field, Object value, VariantWriter out) {
        switch (field.type) {
            case DOUBLE -> out.number(value == null ? 0.0 : (Double) value);
            case FLOAT -> out.number(value == null ? 0.0f : (Float) value);
            case UINT64, FIXED64 -> out.unsigned(value == null ? 0 : (Long) value);
            case BOOL -> out.bool(value != null && (Boolean) value);
            case STRING -> out.text(value == null ? "" : (String) value);
            case BYTES -> out.bytes(value == null ? new byte[0] : (byte[]) value);
            case ENUM -> symbol(field.of, value == null ? 0 : (Long) value, out);
            case GROUP, MESSAGE -> {
                ProtobufMessage message = (ProtobufMessage) value;
                if (message == null) {
                    out.countPlaces(field.of.fields.length);
                    message = new ProtobufMessage(field.of.fields.length);
                }
                message(field.of, message, out);
            }
            default -> out.integer(value == null ? 0 : (Long) value);
        }
    }

    private static void symbol(Type type, long number, VariantWriter out) {
        String symbol = type.symbols.get((int) number);
        if (symbol == null) {
            out.integer(number);
        } else {
            out.text(symbol);
        }
    }

    /** Write a message that has a form of its own in JSON; tell whether it has. */
    private static boolean wellKnown(Type type, ProtobufMessage message, VariantWriter out) {
        switch (type.name.substring("google.protobuf.".length())) {
            case "Timestamp" -> out.text(timestamp(message.number(0), message.number(1)));
            case "Duration" -> out.text(duration(message.number(0), message.number(1)));
            case "DoubleValue",
                    "FloatValue",
                    "Int64Value",
                    "UInt64Value",
                    "Int32Value",
                    "UInt32Value",
                    "BoolValue",
                    "StringValue",
                    "BytesValue" ->
                    write(type.fields[0], message.get(0), out);
            case "Struct" -> map(type.fields[0], message.all(0), out);
            case "ListValue" -> array(type.fields[0], message.all(0), out);
            case "Value" -> anyValue(type, message, out);
            default -> {
                return false;
            }
        }
        return true;
    }

    /** Write the one field that is there; the first is null written out. */
    private static void anyValue(Type type, ProtobufMessage message, VariantWriter out) {
        for (Field field : type.fields) {
            if (message.has(field.index) && field.number != 1) {
                write(field, message.get(field.index), out);
                return;
            }
        }
        out.nothing();
    }

    private static String timestamp(long seconds, long nanos) {
        try {
            return Instant.ofEpochSecond(seconds, nanos).toString();
        } catch (DateTimeException error) {
            throw new Undecodable("a Timestamp is out of range");
        }
    }

    /** `1.500s`: without a fraction, or with 3, 6 or 9 digits. */
    private static String duration(long seconds, long nanos) {
        if (nanos <= -1000000000L || nanos >= 1000000000L) {
            throw new Undecodable("a Duration has " + nanos + " nanoseconds");
        }
        String sign = seconds < 0 || nanos < 0 ? "-" : "";
        String digits = Long.toString(1000000000L + Math.abs(nanos)).substring(1);
        int kept = nanos == 0 ? 0 : nanos % 1000000 == 0 ? 3 : nanos % 1000 == 0 ? 6 : 9;
        return sign + Math.abs(seconds) + (kept == 0 ? "" : "." + digits.substring(0, kept)) + "s";
    }
}
