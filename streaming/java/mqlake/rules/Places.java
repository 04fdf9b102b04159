package mqlake.rules;

import mqlake.Vocabulary;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Notes which rule is being evaluated on which record, in a file that outlives this JVM: when it
 * dies, the process that starts the next one reads there what it died of
 * (streaming/application/poison_file.py has the form).
 *
 * <p>A note costs some stores into mapped memory; nothing is written by a call of the system. Only
 * the driver's JVM has the file; executors elsewhere note nothing.
 */
public final class Places {
    private static final int SLOTS = 64;
    private static final int SLOT_BYTES = 256;
    private static final int PARTITION = 4;
    private static final int OFFSET = 8;
    private static final int VERSION = 16;
    private static final int IS_EVENT = 20;
    private static final int LENGTH = 24;
    private static final int NAME = 28;

    private static volatile MappedByteBuffer file;

    /** Which rule's name a slot has. */
    private static final byte[][] NAMED = new byte[SLOTS][];

    private static final ConcurrentHashMap<String, Boolean> SKIPPED = new ConcurrentHashMap<>();

    private Places() {}

    /** Note places in a file from now on; what it held is gone. */
    public static void open(String path) throws IOException {
        RandomAccessFile opened = new RandomAccessFile(path, "rw");
        try {
            for (int i = 0; i < SLOTS; i++) {
                NAMED[i] = null;
            }
            opened.setLength(0);
            opened.setLength((long) SLOTS * SLOT_BYTES);
            file =
                    opened.getChannel()
                            .map(FileChannel.MapMode.READ_WRITE, 0, (long) SLOTS * SLOT_BYTES);
        } finally {
            opened.close();
        }
    }

    /** Skip a place: `tenant/rule i:partition:offset`, `e` for an event. */
    public static void skip(String place) {
        SKIPPED.put(place, Boolean.TRUE);
    }

    /** Evaluate all places again. */
    public static void forget() {
        SKIPPED.clear();
    }

    /**
     * Note that a lane begins with a record.
     *
     * @throws IllegalStateException The place is skipped.
     */
    public static void begin(
            int lane, RuleVersion rule, boolean isEvent, int partition, long offset) {
        if (!SKIPPED.isEmpty()) {
            check(rule, isEvent, partition, offset);
        }
        MappedByteBuffer slots = file;
        if (slots == null || lane >= SLOTS) {
            return;
        }
        int at = lane * SLOT_BYTES;
        if (NAMED[lane] != rule.key) {
            NAMED[lane] = rule.key;
            int length = Math.min(rule.key.length, SLOT_BYTES - NAME);
            slots.putInt(at + LENGTH, length);
            slots.put(at + NAME, rule.key, 0, length);
        }
        slots.putInt(at + PARTITION, partition);
        slots.putLong(at + OFFSET, offset);
        slots.putInt(at + VERSION, rule.version);
        slots.putInt(at + IS_EVENT, isEvent ? 1 : 0);
        slots.putInt(at, 1);
    }

    public static void end(int lane) {
        MappedByteBuffer slots = file;
        if (slots != null && lane < SLOTS) {
            slots.putInt(lane * SLOT_BYTES, 0);
        }
    }

    private static void check(RuleVersion rule, boolean isEvent, int partition, long offset) {
        String place =
                rule.tenant
                        + "/"
                        + rule.rule
                        + " "
                        + (isEvent ? Vocabulary.SOURCE_EVENTS : Vocabulary.SOURCE_INBOUND)
                        + ":"
                        + partition
                        + ":"
                        + offset;
        if (SKIPPED.containsKey(place)) {
            throw new IllegalStateException(
                    "passed over: the engine has ended while it evaluated"
                            + " this rule on this message, or an operator has said so ("
                            + place
                            + ")");
        }
    }
}
