package mqlake.decoding;

import com.fasterxml.jackson.databind.JsonNode;

import mqlake.spark.VariantOutput;

import org.apache.spark.unsafe.types.VariantVal;

import java.util.ArrayList;
import java.util.Locale;

/**
 * Decodes Avro's binary encoding (specification 1.12), the bare datum without a header.
 *
 * <p>The layout is made by rules/schemas/avro.py: types by number, the datum's the first.
 */
final class AvroDecoder implements PayloadDecoder.Format {
    /** Types by their names in the specification, in capitals. */
    private enum Kind {
        NULL,
        BOOLEAN,
        INT,
        LONG,
        FLOAT,
        DOUBLE,
        BYTES,
        STRING,
        FIXED,
        ENUM,
        ARRAY,
        MAP,
        UNION,
        RECORD
    }

    private static final class Type {
        Kind kind;

        /** Of fields or symbols. */
        String[] names;

        /** Of fields, branches, items or values. */
        Type[] parts;

        /** Of a fixed. */
        int size;

        /** Of a decimal, which is bytes or fixed; -1 otherwise. */
        int scale = -1;
    }

    private final Type root;

    AvroDecoder(JsonNode layout) {
        JsonNode listed = layout.get("types");
        Type[] types = new Type[listed.size()];
        for (int i = 0; i < types.length; i++) {
            types[i] = new Type();
        }
        for (int i = 0; i < types.length; i++) {
            fill(types[i], listed.get(i), types);
        }
        root = types[0];
    }

    private static void fill(Type type, JsonNode node, Type[] types) {
        type.kind = Kind.valueOf(node.get("type").asText().toUpperCase(Locale.ROOT));
        JsonNode names = node.get("names");
        if (names != null) {
            type.names = new String[names.size()];
            for (int i = 0; i < type.names.length; i++) {
                type.names[i] = names.get(i).asText();
            }
        }
        JsonNode parts = node.get("parts");
        if (parts != null) {
            type.parts = new Type[parts.size()];
            for (int i = 0; i < type.parts.length; i++) {
                type.parts[i] = types[parts.get(i).asInt()];
            }
        }
        if (node.get("size") != null) {
            type.size = node.get("size").asInt();
        }
        if (node.get("scale") != null) {
            type.scale = node.get("scale").asInt();
        }
    }

    @Override
    public VariantVal decode(byte[] payload) {
        WireReader in = new WireReader(payload);
        VariantWriter out = new VariantWriter();
        value(root, in, out, 0);
        if (!in.isAtEnd()) {
            throw new Undecodable(in.left() + " bytes are left behind the value");
        }
        return out.result();
    }

    private static void value(Type type, WireReader in, VariantWriter out, int depth) {
        if (depth > VariantWriter.MOST_DEPTH) {
            throw new Undecodable("values are nested too deeply");
        }
        switch (type.kind) {
            case NULL -> out.nothing();
            case BOOLEAN -> out.bool(flag(in));
            case INT -> out.integer(small(in));
            case LONG -> out.integer(in.zigzag());
            case FLOAT -> out.number(Float.intBitsToFloat(in.fixed32()));
            case DOUBLE -> out.number(Double.longBitsToDouble(in.fixed64()));
            case BYTES -> binary(type, in.bytes(in.length(in.zigzag())), out);
            case STRING -> out.text(in.text(in.length(in.zigzag())));
            case FIXED -> binary(type, in.bytes(in.length(type.size)), out);
            case ENUM -> out.text(type.names[index(in.zigzag(), type.names.length, "an enum")]);
            case ARRAY -> array(type, in, out, depth);
            case MAP -> map(type, in, out, depth);
            case UNION -> {
                int branch = index(in.zigzag(), type.parts.length, "a union");
                value(type.parts[branch], in, out, depth + 1);
            }
            case RECORD -> record(type, in, out, depth);
        }
    }

    private static boolean flag(WireReader in) {
        byte flag = in.next();
        if (flag != 0 && flag != 1) {
            throw new Undecodable("a boolean is " + flag + ", expected 0 or 1");
        }
        return flag == 1;
    }

    private static long small(WireReader in) {
        long small = in.zigzag();
        if (small != (int) small) {
            throw new Undecodable("an int is " + small + ", beyond 32 bits");
        }
        return small;
    }

    private static void record(Type type, WireReader in, VariantWriter out, int depth) {
        int start = out.position();
        VariantOutput.Fields fields = new VariantOutput.Fields(type.names.length);
        for (int i = 0; i < type.names.length; i++) {
            out.key(type.names[i], start, fields);
            value(type.parts[i], in, out, depth + 1);
        }
        out.endObject(start, fields);
    }

    private static void array(Type type, WireReader in, VariantWriter out, int depth) {
        int start = out.position();
        ArrayList<Integer> offsets = new ArrayList<>();
        for (long count = block(in); count > 0; count = block(in)) {
            for (long i = 0; i < count; i++) {
                out.element(start, offsets);
                value(type.parts[0], in, out, depth + 1);
            }
        }
        out.endArray(start, offsets);
    }

    private static void map(Type type, WireReader in, VariantWriter out, int depth) {
        int start = out.position();
        VariantOutput.Fields fields = new VariantOutput.Fields();
        for (long count = block(in); count > 0; count = block(in)) {
            for (long i = 0; i < count; i++) {
                out.key(in.text(in.length(in.zigzag())), start, fields);
                value(type.parts[0], in, out, depth + 1);
            }
        }
        out.endObject(start, fields);
    }

    /** Return how many items the next block has; a negative count is followed by its size. */
    private static long block(WireReader in) {
        long count = in.zigzag();
        if (count < 0) {
            in.length(in.zigzag());
            count = -count;
        }
        return count;
    }

    private static void binary(Type type, byte[] value, VariantWriter out) {
        if (type.scale < 0) {
            out.bytes(value);
        } else if (value.length == 0) {
            throw new Undecodable("a decimal is empty");
        } else {
            out.decimal(value, type.scale);
        }
    }

    private static int index(long index, int count, String what) {
        if (index < 0 || index >= count) {
            throw new Undecodable(what + " has number " + index + ", there are " + count);
        }
        return (int) index;
    }
}
