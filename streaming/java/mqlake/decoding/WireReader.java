package mqlake.decoding;

import org.apache.spark.unsafe.types.UTF8String;

import java.nio.charset.StandardCharsets;

/**
 * Reads the numbers and texts that Protobuf and Avro share, from a range of bytes.
 *
 * <p>Whatever does not fit raises Undecodable; nothing else does.
 */
final class WireReader {
    private final byte[] data;
    int at;
    int end;

    WireReader(byte[] data) {
        this.data = data;
        this.end = data.length;
    }

    boolean isAtEnd() {
        return at >= end;
    }

    int left() {
        return end - at;
    }

    /** Seven bits a byte, the lowest first. */
    long varint() {
        long value = 0;
        for (int shift = 0; shift < 64; shift += 7) {
            byte next = next();
            value |= (long) (next & 0x7f) << shift;
            if (next >= 0) {
                return value;
            }
        }
        throw new Undecodable("a number is longer than 10 bytes");
    }

    /** Small numbers of either sign are short: 0, -1, 1, -2, … */
    long zigzag() {
        long value = varint();
        return (value >>> 1) ^ -(value & 1);
    }

    int fixed32() {
        need(4);
        int value =
                (data[at] & 0xff)
                        | (data[at + 1] & 0xff) << 8
                        | (data[at + 2] & 0xff) << 16
                        | (data[at + 3] & 0xff) << 24;
        at += 4;
        return value;
    }

    long fixed64() {
        long low = fixed32() & 0xffffffffL;
        return low | (long) fixed32() << 32;
    }

    byte next() {
        if (at >= end) {
            throw new Undecodable("the payload ends too early");
        }
        return data[at++];
    }

    /** Check the length of what comes next; return it. */
    int length(long length) {
        if (length < 0 || length > end - at) {
            throw new Undecodable(
                    "the payload ends too early: "
                            + length
                            + " bytes expected, "
                            + (end - at)
                            + " left");
        }
        return (int) length;
    }

    byte[] bytes(int length) {
        byte[] value = new byte[length];
        System.arraycopy(data, at, value, 0, length);
        at += length;
        return value;
    }

    String text(int length) {
        String value = text(data, at, length);
        at += length;
        return value;
    }

    void skip(int length) {
        need(length);
        at += length;
    }

    static String text(byte[] data, int from, int length) {
        boolean isAscii = true;
        for (int i = from; i < from + length && isAscii; i++) {
            isAscii = data[i] >= 0;
        }
        if (!isAscii && !UTF8String.fromBytes(data, from, length).isValid()) {
            throw new Undecodable("a text is not UTF-8");
        }
        return new String(data, from, length, StandardCharsets.UTF_8);
    }

    private void need(int length) {
        if (end - at < length) {
            throw new Undecodable("the payload ends too early");
        }
    }
}
