package mqlake.routing;

import mqlake.spark.Words;

import java.security.SecureRandom;

/**
 * SipHash-1-3 of bytes with a key of this JVM (Aumasson and Bernstein, 2012; what Rust's maps use).
 *
 * <p>Clients choose topics and filters: with a hash that they could know they would choose those
 * that collide, and every look-up would pass all of them.
 */
public final class KeyedHash {
    private static final long KEY0 = new SecureRandom().nextLong();
    private static final long KEY1 = new SecureRandom().nextLong();

    private KeyedHash() {}

    /** Hash the bytes between two positions, of which the array has to have all. */
    static long of(byte[] bytes, int from, int to) {
        return of(KEY0, KEY1, bytes, from, to);
    }

    /** The same with a key of the caller's. */
    public static long of(long key0, long key1, byte[] bytes, int from, int to) {
        long v0 = key0 ^ 0x736f6d6570736575L;
        long v1 = key1 ^ 0x646f72616e646f6dL;
        long v2 = key0 ^ 0x6c7967656e657261L;
        long v3 = key1 ^ 0x7465646279746573L;
        int whole = to - (to - from & 7);
        long last = (long) (to - from) << 56;
        for (int i = to - 1; i >= whole; i--) {
            last |= (bytes[i] & 0xffL) << (i - whole << 3);
        }
        for (int at = from; at <= whole; at += 8) {
            // In the order of this machine's bytes: no other machine is told a hash.
            long word = at < whole ? Words.at(bytes, at) : last;
            v3 ^= word;
            v0 += v1;
            v1 = v1 << 13 | v1 >>> 51;
            v1 ^= v0;
            v0 = v0 << 32 | v0 >>> 32;
            v2 += v3;
            v3 = v3 << 16 | v3 >>> 48;
            v3 ^= v2;
            v0 += v3;
            v3 = v3 << 21 | v3 >>> 43;
            v3 ^= v0;
            v2 += v1;
            v1 = v1 << 17 | v1 >>> 47;
            v1 ^= v2;
            v2 = v2 << 32 | v2 >>> 32;
            v0 ^= word;
        }
        v2 ^= 0xff;
        for (int round = 0; round < 3; round++) {
            v0 += v1;
            v1 = v1 << 13 | v1 >>> 51;
            v1 ^= v0;
            v0 = v0 << 32 | v0 >>> 32;
            v2 += v3;
            v3 = v3 << 16 | v3 >>> 48;
            v3 ^= v2;
            v0 += v3;
            v3 = v3 << 21 | v3 >>> 43;
            v3 ^= v0;
            v2 += v1;
            v1 = v1 << 17 | v1 >>> 47;
            v1 ^= v2;
            v2 = v2 << 32 | v2 >>> 32;
        }
        return v0 ^ v1 ^ v2 ^ v3;
    }
}
