package mqlake.spark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.types.variant.Variant;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.unsafe.types.VariantVal;

/**
 * How many bytes a value has as JSON, or in a row with all of its parts: not fewer than it will
 * have.
 */
final class JsonSize {
    /** Of a decimal, a time or an interval. */
    private static final int SCALAR_BYTES = 40;

    private static final int DOUBLE_BYTES = 25;
    private static final int BOOLEAN_BYTES = 5;

    /** Around a value: comma, brackets or quotes. */
    private static final int AROUND_BYTES = 3;

    private final long limit;
    private long size;

    private JsonSize(long limit) {
        this.limit = limit;
    }

    /** Return the size of a value as Catalyst has it; above the limit any number above it. */
    static long of(Object value, DataType type, long limit) {
        JsonSize json = new JsonSize(limit);
        json.add(value, type);
        return json.size;
    }

    private void add(Object value, DataType type) {
        size += AROUND_BYTES;
        if (value == null || size > limit) {
            return;
        }
        if (value instanceof UTF8String text) {
            text(text);
        } else if (value instanceof byte[] bytes) {
            size += bytes.length / 3 * 4L + 4;
        } else if (value instanceof VariantVal variant) {
            if (isScalar(variant.getValue())) {
                size += 6L * variant.getValue().length + SCALAR_BYTES;
            } else {
                variant(new Variant(variant.getValue(), variant.getMetadata()));
            }
        } else if (value instanceof InternalRow row && type instanceof StructType struct) {
            StructField[] fields = struct.fields();
            for (int i = 0; i < fields.length && size <= limit; i++) {
                size += fields[i].name().length() + AROUND_BYTES;
                add(
                        row.isNullAt(i) ? null : row.get(i, fields[i].dataType()),
                        fields[i].dataType());
            }
        } else if (value instanceof ArrayData array && type instanceof ArrayType of) {
            elements(array, of.elementType());
        } else if (value instanceof MapData map && type instanceof MapType of) {
            elements(map.keyArray(), of.keyType());
            elements(map.valueArray(), of.valueType());
        } else {
            size += scalar(value);
        }
    }

    private static int scalar(Object value) {
        if (value instanceof Double || value instanceof Float) {
            return DOUBLE_BYTES;
        }
        return value instanceof Boolean
                ? BOOLEAN_BYTES
                : value instanceof Number number ? digits(number.longValue()) : SCALAR_BYTES;
    }

    private static int digits(long value) {
        int digits = value < 0 ? 2 : 1;
        for (long rest = value / 10; rest != 0; rest /= 10) {
            digits++;
        }
        return digits;
    }

    private void elements(ArrayData array, DataType type) {
        for (int i = 0; i < array.numElements() && size <= limit; i++) {
            add(array.isNullAt(i) ? null : array.get(i, type), type);
        }
    }

    private void text(UTF8String value) {
        int bytes = value.numBytes();
        size += bytes;
        for (int i = 0; i < bytes && size <= limit; i++) {
            byte c = value.getByte(i);
            if (c == '"' || c == '\\') {
                size++;
            } else if (c >= 0 && c < 32) {
                size += 5;
            }
        }
    }

    private void text(String value) {
        size += 2;
        for (int i = 0; i < value.length() && size <= limit; i++) {
            char c = value.charAt(i);
            size += c < 32 ? 6 : c == '"' || c == '\\' ? 2 : c < 128 ? 1 : 3;
        }
    }

    /** Of the lowest two bits 2 is an object, 3 an array. */
    private static boolean isScalar(byte[] value) {
        return value.length == 0 || (value[0] & 3) < 2;
    }

    private void variant(Variant value) {
        size += AROUND_BYTES;
        switch (value.getType()) {
            case OBJECT -> {
                int fields = value.objectSize();
                for (int i = 0; i < fields && size <= limit; i++) {
                    Variant.ObjectField field = value.getFieldAtIndex(i);
                    text(field.key);
                    variant(field.value);
                }
            }
            case ARRAY -> {
                int elements = value.arraySize();
                for (int i = 0; i < elements && size <= limit; i++) {
                    variant(value.getElementAtIndex(i));
                }
            }
            case STRING -> text(value.getString());
            case BINARY -> size += value.getBinary().length / 3 * 4L + 4;
            case LONG -> size += digits(value.getLong());
            case DOUBLE, FLOAT -> size += DOUBLE_BYTES;
            case BOOLEAN, NULL -> size += BOOLEAN_BYTES;
            default -> size += SCALAR_BYTES;
        }
    }
}
