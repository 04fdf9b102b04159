package mqlake.log;

import java.util.Iterator;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLongArray;

/**
 * How far real-time queries have come, which Spark says only once in a batch: per partition the
 * offset behind the last record that a function has looked at, and the one before which everything
 * is done.
 *
 * <p>Of this JVM.
 */
public final class Positions {
    /** Partitions from here on are left out. */
    private static final int MOST_PARTITIONS = 1024;

    private static final ConcurrentHashMap<String, Positions> ALL = new ConcurrentHashMap<>();

    /** Goes up about twice a second. */
    private static volatile int tick;

    private final AtomicLongArray next = new AtomicLongArray(MOST_PARTITIONS);
    private final AtomicLongArray done = new AtomicLongArray(MOST_PARTITIONS);

    /** Each of the thread that reads the partition. */
    private final int[] seen = new int[MOST_PARTITIONS];

    private Positions() {}

    /** Return those of a query in a log topic. */
    public static Positions of(String query, String logTopic) {
        String name = query + " " + logTopic;
        Positions found = ALL.get(name);
        if (found == null) {
            ALL.putIfAbsent(name, new Positions());
            found = ALL.get(name);
        }
        return found;
    }

    /** Let the next record of each partition mark how far its task is. */
    static void tick() {
        tick++;
    }

    /**
     * Note that a record is looked at; a query that starts again may go back.
     *
     * <p>A task looks at the next record when it has sent all outputs of the one before.
     */
    public void reach(int partition, long offset) {
        if (partition < MOST_PARTITIONS) {
            int now = tick;
            if (seen[partition] != now) {
                seen[partition] = now;
                TaskBatch batch = TaskBatch.ofTask();
                if (batch != null) {
                    batch.mark(this, partition, offset);
                }
            }
            next.lazySet(partition, offset + 1);
        }
    }

    /** Note that nothing comes of a record that {@link #reach} was told of. */
    public void passOver(int partition, long offset) {
        TaskBatch batch = TaskBatch.ofTask();
        if (batch != null && partition < MOST_PARTITIONS) {
            batch.mark(this, partition, offset + 1);
        }
    }

    /** Note that the log has everything that came out of records before an offset. */
    void finish(int partition, long offset) {
        synchronized (done) {
            done.set(partition, Math.max(offset, done.get(partition)));
        }
    }

    /** Return a line `query log-topic partition offset` for each partition that was looked at. */
    public static String reached() {
        return text(false);
    }

    /** Return such lines with the offsets before which everything is done. */
    public static String done() {
        return text(true);
    }

    private static String text(boolean isDone) {
        StringBuilder lines = new StringBuilder();
        Iterator<Map.Entry<String, Positions>> each = ALL.entrySet().iterator();
        while (each.hasNext()) {
            Map.Entry<String, Positions> entry = each.next();
            Positions positions = entry.getValue();
            AtomicLongArray offsets = isDone ? positions.done : positions.next;
            for (int partition = 0; partition < MOST_PARTITIONS; partition++) {
                long offset = offsets.get(partition);
                if (offset > 0) {
                    lines.append(entry.getKey()).append(' ').append(partition);
                    lines.append(' ').append(offset).append('\n');
                }
            }
        }
        return lines.toString();
    }
}
