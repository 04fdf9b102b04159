package mqlake.stateful;

import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

import java.util.List;

/**
 * What is remembered of one key, and how a message or the passing of time changes it.
 *
 * <p>The state that a key begins in (present, off, low) with nothing else to remember is not kept,
 * so that keys that are well cost nothing; of those that vanish the state goes after `keep`. Times
 * are microseconds since 1970.
 */
final class DetectionState {
    static final long NEVER = Long.MAX_VALUE;

    /** When the key's timer is due, milliseconds. */
    long wake = NEVER;

    /** Absent, on or high. */
    private boolean isOn;

    /** Debounce: time of the first of the messages for which the condition held. */
    private long since = NEVER;

    /** Time of the last message; NEVER: nothing is remembered. */
    private long seen = NEVER;

    /** n of m: of the last messages, the newest first, one byte each; null: none held. */
    private byte[] flags;

    /** The message that is told when a moment comes. */
    private Row last;

    DetectionState() {}

    DetectionState(Row row) {
        wake = row.getLong(0);
        isOn = row.getBoolean(1);
        since = row.getLong(2);
        seen = row.getLong(3);
        flags = (byte[]) row.get(4);
        last = (Row) row.get(5);
    }

    static StructType schema(StructType input) {
        return new StructType(
                new StructField[] {
                    DataTypes.createStructField("wake", DataTypes.LongType, false),
                    DataTypes.createStructField("is_on", DataTypes.BooleanType, false),
                    DataTypes.createStructField("since", DataTypes.LongType, false),
                    DataTypes.createStructField("seen", DataTypes.LongType, false),
                    DataTypes.createStructField("flags", DataTypes.BinaryType, true),
                    DataTypes.createStructField("last", input, true),
                });
    }

    Row toRow() {
        return RowFactory.create(
                new Object[] {
                    Long.valueOf(wake),
                    Boolean.valueOf(isOn),
                    Long.valueOf(since),
                    Long.valueOf(seen),
                    flags,
                    last,
                });
    }

    boolean isEmpty() {
        return wake == NEVER && seen == NEVER;
    }

    /** Tell and forget what comes before a time. */
    void passTo(long time, DetectionOptions options, List<Row> told) {
        long deadline = deadline(options);
        if (deadline < time) {
            isOn = true;
            told.add(options.told(last, deadline, true, options.isAbsence() ? seen : since));
            last = null; // the next message is told with its own columns
        }
        if (seen != NEVER && forgotten(options) < time) {
            forget();
        }
    }

    /** Take the next message. */
    void take(Row row, long time, DetectionOptions options, List<Row> told) {
        if (options.isAbsence()) {
            takeAny(row, time, options, told);
        } else if (options.isDebounce()) {
            takeHeld(row, time, options, told);
        } else if (options.isHysteresis()) {
            takeValue(row, time, options, told);
        } else {
            takeFlag(row, time, options, told);
        }
    }

    /** Return when something happens without a message, in milliseconds. */
    long nextMoment(DetectionOptions options) {
        if (seen == NEVER) {
            return NEVER;
        }
        return DetectionOptions.toMs(Math.min(deadline(options), forgotten(options)));
    }

    private void takeAny(Row row, long time, DetectionOptions options, List<Row> told) {
        if (isOn) {
            isOn = false;
            told.add(options.told(row, time, false, time));
        }
        seen = time;
        last = row;
    }

    private void takeHeld(Row row, long time, DetectionOptions options, List<Row> told) {
        if (options.holds(row)) {
            if (since == NEVER) {
                since = time;
            }
            seen = time;
            // Once it is told, its messages are of no more interest.
            last = isOn ? null : row;
        } else {
            if (isOn) {
                told.add(options.told(row, time, false, time));
            }
            forget();
        }
    }

    private void takeValue(Row row, long time, DetectionOptions options, List<Row> told) {
        int side = options.side(row);
        if (side > 0 && !isOn) {
            isOn = true;
            told.add(options.told(row, time, true, time));
        } else if (side < 0 && isOn) {
            forget();
            told.add(options.told(row, time, false, time));
        }
        if (isOn) {
            seen = time;
        }
    }

    private void takeFlag(Row row, long time, DetectionOptions options, List<Row> told) {
        byte[] newer = new byte[flags == null ? 1 : Math.min(flags.length + 1, options.last)];
        newer[0] = (byte) (options.holds(row) ? 1 : 0);
        if (flags != null) {
            System.arraycopy(flags, 0, newer, 1, newer.length - 1);
        }
        int count = 0;
        for (int i = 0; i < newer.length; i++) {
            count += newer[i];
        }
        boolean now = count >= options.least;
        if (now != isOn) {
            told.add(options.told(row, time, now, time));
        }
        if (count == 0) {
            forget();
        } else {
            isOn = now;
            flags = newer;
            seen = time;
        }
    }

    private void forget() {
        isOn = false;
        since = NEVER;
        seen = NEVER;
        flags = null;
        last = null;
    }

    /** When the state changes unless a message comes. */
    private long deadline(DetectionOptions options) {
        if (isOn || seen == NEVER) {
            return NEVER;
        }
        if (options.isAbsence()) {
            return seen + options.duration;
        }
        return options.isDebounce() && since != NEVER ? since + options.duration : NEVER;
    }

    private long forgotten(DetectionOptions options) {
        return seen + options.duration + options.keep;
    }
}
