package mqlake.spark;

import org.apache.spark.unsafe.Platform;

/** Reads eight bytes at once. */
public final class Words {
    private Words() {}

    /**
     * Return the eight bytes from a position on, in the order of this machine's bytes. Nothing
     * checks that the array has them.
     */
    public static long at(byte[] bytes, int position) {
        return Platform.getLong(bytes, Platform.BYTE_ARRAY_OFFSET + position);
    }
}
