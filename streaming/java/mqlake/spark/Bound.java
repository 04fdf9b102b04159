package mqlake.spark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.unsafe.types.VariantVal;

import java.io.Serializable;
import java.util.Formatter;
import java.util.Locale;

/**
 * What stands between a function of SQL and its arguments (Bounds): counts what the function will
 * make of them, and passes them on or raises an error.
 *
 * <p>Its methods are called by Catalyst, interpreted or in generated code; no argument is null. A
 * copy of the expression is one thread's, and so is what it has in here.
 */
public final class Bound implements Serializable {
    private static final long serialVersionUID = 1L;

    /** A reference and what is around a small value. */
    private static final int ELEMENT_BYTES = 16;

    /** Of a number that says how wide or how exact something is shown. */
    static final int MOST_DIGITS = 1000;

    /** What all bounds of an expression have in common. */
    static final class Shares implements Serializable {
        private static final long serialVersionUID = 1L;

        /** Functions that the bytes of a row are divided among. */
        int count;

        /** Of what a higher-order function has its function make, for all elements. */
        long repeated;
    }

    private final String name;
    private final long factor;
    private final long plus;
    private final DataType type;
    private final boolean isRepeated;
    private final Shares shares;

    /**
     * @param name Of the function, for people.
     * @param factor Bytes made of each byte, or element, or of one that a number asks for.
     * @param plus Bytes made besides; of arrays for each element.
     * @param type Of the argument where its parts count.
     * @param isRepeated It stands in the function of a higher-order function.
     */
    Bound(String name, long factor, long plus, DataType type, boolean isRepeated, Shares shares) {
        this.name = name;
        this.factor = factor;
        this.plus = plus;
        this.type = type;
        this.isRepeated = isRepeated;
        this.shares = shares;
    }

    public UTF8String text(UTF8String value) {
        take(value.numBytes() * factor + plus);
        return value;
    }

    public byte[] binary(byte[] value) {
        take(value.length * factor + plus);
        return value;
    }

    public ArrayData array(ArrayData value) {
        take(value.numElements() * factor * ELEMENT_BYTES);
        return value;
    }

    /** An array of arrays that becomes one. */
    public ArrayData flat(ArrayData value) {
        long elements = 0;
        for (int i = 0; i < value.numElements(); i++) {
            elements += value.isNullAt(i) ? 0 : value.getArray(i).numElements();
        }
        take(elements * ELEMENT_BYTES);
        return value;
    }

    /** An array that becomes text, with as many bytes more for each element. */
    public ArrayData joined(ArrayData value) {
        take(value.numElements() * plus);
        take(JsonSize.of(value, type, left()));
        return value;
    }

    public InternalRow json(InternalRow value) {
        take(JsonSize.of(value, type, left()) * factor);
        return value;
    }

    public ArrayData json(ArrayData value) {
        take(JsonSize.of(value, type, left()) * factor);
        return value;
    }

    public MapData json(MapData value) {
        take(JsonSize.of(value, type, left()) * factor);
        return value;
    }

    public VariantVal json(VariantVal value) {
        take(JsonSize.of(value, type, left()) * factor);
        return value;
    }

    /** JSON that is read into rows of as many bytes. */
    public UTF8String objects(UTF8String value) {
        long objects = 1;
        for (int i = 0; i < value.numBytes(); i++) {
            objects += value.getByte(i) == '{' ? 1 : 0;
        }
        take(objects * factor);
        return value;
    }

    /** A number that says how much is made. */
    public int count(int value) {
        take(Math.abs((long) value) * factor);
        return value;
    }

    /** A number that is not above the factor. */
    public int atMost(int value) {
        if (value > factor) {
            throw Failures.raised(name + " is asked for " + value + ", " + factor + " are allowed");
        }
        return value;
    }

    /** A text that is not longer than the factor. */
    public UTF8String atMost(UTF8String value) {
        if (value.numBytes() > factor) {
            throw Failures.raised(
                    name
                            + " has a text of "
                            + value.numBytes()
                            + " bytes, "
                            + factor
                            + " are allowed");
        }
        return value;
    }

    public UTF8String replace(UTF8String value, UTF8String old, UTF8String replacement) {
        if (value.numBytes() == 0 || old.numBytes() == 0) {
            return value;
        }
        long size = value.numBytes();
        int more = replacement.numBytes() - old.numBytes();
        if (more > 0) {
            // Not how often it is there: that would be to look twice, unless it matters.
            long most = size + size / old.numBytes() * more;
            size = most <= Math.min(left(), 65536) ? most : size + more * (long) times(value, old);
        }
        take(size);
        return value.replace(old, replacement);
    }

    private static int times(UTF8String value, UTF8String part) {
        int times = 0;
        String text = value.toString();
        String looked = part.toString();
        for (int at = text.indexOf(looked);
                at >= 0;
                at = text.indexOf(looked, at + looked.length())) {
            times++;
        }
        return times;
    }

    public UTF8String repeat(UTF8String value, int times) {
        take(value.numBytes() * (long) Math.max(times, 0));
        return value.repeat(times);
    }

    /** As format_string of Spark does, when widths and arguments allow it. */
    public UTF8String format(UTF8String pattern, InternalRow arguments) {
        StructType fields = (StructType) type;
        Object[] values = new Object[fields.length()];
        long longest = 64;
        for (int i = 0; i < values.length; i++) {
            values[i] = arguments.get(i, fields.apply(i).dataType());
            if (values[i] instanceof UTF8String value) {
                longest = Math.max(longest, value.numBytes());
            } else if (values[i] != null && !(values[i] instanceof Number)) {
                longest =
                        Math.max(
                                longest,
                                JsonSize.of(values[i], fields.apply(i).dataType(), left()));
            }
        }
        String text = pattern.toString();
        long directives = 0;
        int digits = 0;
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            directives += c == '%' ? 1 : 0;
            digits = c >= '0' && c <= '9' ? Math.min(digits * 10 + c - '0', MOST_DIGITS + 1) : 0;
            if (digits > MOST_DIGITS) {
                throw Failures.raised(name + " has a number above " + MOST_DIGITS);
            }
        }
        take(pattern.numBytes() + directives * Math.max(longest, MOST_DIGITS));
        return UTF8String.fromString(
                new Formatter(new StringBuilder(), Locale.US).format(text, values).toString());
    }

    /**
     * The elements that a function is called with: what it makes of all of them counts together.
     */
    public ArrayData begin(ArrayData value) {
        shares.repeated = share();
        return value;
    }

    public MapData begin(MapData value) {
        shares.repeated = share();
        return value;
    }

    private long share() {
        return Budget.MOST_BYTES / Math.max(1, shares.count);
    }

    private long left() {
        Budget budget = Budget.current();
        return budget.isOpen() ? budget.left() : isRepeated ? shares.repeated : share();
    }

    private void take(long bytes) {
        Budget budget = Budget.current();
        if (budget.isOpen()) {
            budget.take(bytes, name);
            return;
        }
        long left = isRepeated ? shares.repeated : share();
        if (bytes > left) {
            throw Failures.raised(
                    name
                            + " would make "
                            + bytes
                            + " bytes, "
                            + left
                            + " are allowed here: there are "
                            + Budget.MOST_BYTES
                            + " for all functions that can make values longer");
        }
        if (isRepeated) {
            shares.repeated -= bytes;
        }
    }

    /** Alike where the same function is bounded alike: expressions are compared. */
    @Override
    public boolean equals(Object other) {
        return other instanceof Bound bound
                && bound.name.equals(name)
                && bound.factor == factor
                && bound.plus == plus
                && bound.isRepeated == isRepeated;
    }

    @Override
    public int hashCode() {
        return name.hashCode();
    }

    /** Shown in plans. */
    @Override
    public String toString() {
        return "bound of " + name;
    }
}
