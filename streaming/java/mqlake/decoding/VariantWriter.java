package mqlake.decoding;

import mqlake.spark.VariantOutput;

import org.apache.spark.unsafe.types.VariantVal;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.util.ArrayList;
import java.util.Base64;

/**
 * Builds a VARIANT of decoded values as the language shows them: integers stay exact, bytes are
 * base64, what JSON has no number for is text.
 */
final class VariantWriter {
    /** Values of one payload: a few bytes may stand for many. */
    private static final int MOST_VALUES = 1000000;

    /** Of values inside each other. */
    static final int MOST_DEPTH = 64;

    private static final int DECIMAL_DIGITS = 38;

    /** Of the digits of a decimal: the time to write them out grows faster than their number. */
    private static final int MOST_DECIMAL_BYTES = 1024;

    /**
     * Memory of one payload while it is decoded, roughly: of the values, their names and their
     * text.
     */
    private static final long MOST_BYTES = 64L * 1024 * 1024;

    private static final int VALUE_BYTES = 40;
    private static final int POINTER_BYTES = 4;

    private final VariantOutput out = new VariantOutput();
    private int left = MOST_VALUES;
    private long bytesLeft = MOST_BYTES;

    VariantVal result() {
        return out.result();
    }

    /** Count a value before memory is spent on it. */
    void count() {
        if (--left < 0) {
            throw new Undecodable("the payload has more than " + MOST_VALUES + " values");
        }
        take(VALUE_BYTES);
    }

    /** Count the places that a message has for its fields, whether they come or not. */
    void countPlaces(int places) {
        take(VALUE_BYTES + (long) POINTER_BYTES * places);
    }

    private void take(long bytes) {
        bytesLeft -= bytes;
        if (bytesLeft < 0) {
            throw new Undecodable(
                    "the payload takes more than " + MOST_BYTES + " bytes when it is decoded");
        }
    }

    int position() {
        return out.position();
    }

    /** Begin a field of the object that began at a position. */
    void key(String name, int start, VariantOutput.Fields fields) {
        count();
        take(name.length());
        out.key(name, start, fields);
    }

    /** Begin an element of the array that began at a position. */
    void element(int start, ArrayList<Integer> offsets) {
        count();
        offsets.add(Integer.valueOf(out.position() - start));
    }

    void endObject(int start, VariantOutput.Fields fields) {
        out.endObject(start, fields);
    }

    void endArray(int start, ArrayList<Integer> offsets) {
        out.endArray(start, offsets);
    }

    void nothing() {
        out.nothing();
    }

    void bool(boolean value) {
        out.bool(value);
    }

    void integer(long value) {
        out.integer(value);
    }

    void unsigned(long value) {
        if (value >= 0) {
            out.integer(value);
        } else {
            out.decimal(new BigDecimal(new BigInteger(Long.toUnsignedString(value))));
        }
    }

    void number(double value) {
        if (Double.isNaN(value) || Double.isInfinite(value)) {
            out.text(Double.toString(value));
        } else {
            out.number(value);
        }
    }

    /** The number that people would write: 0.1, not 0.10000000149011612. */
    void number(float value) {
        if (value == (int) value) {
            out.number(value);
        } else {
            number(Double.parseDouble(Float.toString(value)));
        }
    }

    /**
     * Write a number of so many digits behind the point; the bytes are its digits, the highest
     * first.
     */
    void decimal(byte[] unscaled, int scale) {
        if (scale > DECIMAL_DIGITS || unscaled.length > MOST_DECIMAL_BYTES) {
            throw new Undecodable(
                    "a decimal has a scale of "
                            + scale
                            + " and "
                            + unscaled.length
                            + " bytes, at most "
                            + DECIMAL_DIGITS
                            + " and "
                            + MOST_DECIMAL_BYTES
                            + " are read");
        }
        BigDecimal value = new BigDecimal(new BigInteger(unscaled), scale);
        if (value.precision() > DECIMAL_DIGITS) {
            text(value.toPlainString());
        } else {
            out.decimal(value);
        }
    }

    void text(String value) {
        take(value.length());
        out.text(value);
    }

    void bytes(byte[] value) {
        take(value.length * 2L);
        out.text(Base64.getEncoder().encodeToString(value));
    }
}
