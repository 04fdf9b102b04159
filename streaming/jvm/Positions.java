package mqlake.streaming;

import java.util.Iterator;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLongArray;

/**
 * How far real-time queries have come, which Spark says only once in a batch: per partition the offset
 * behind the last record that a function has looked at.
 *
 * Of this JVM. Only shown, nothing depends on it.
 */
public final class Positions {
    /** Partitions from here on are left out. */
    private static final int MOST_PARTITIONS = 1024;
    private static final ConcurrentHashMap<String, Positions> ALL =
            new ConcurrentHashMap<String, Positions>();

    private final AtomicLongArray next = new AtomicLongArray(MOST_PARTITIONS);

    private Positions() {}

    /** Return those of a query in a log topic. */
    public static Positions of(String query, String logTopic) {
        String name = query + " " + logTopic;
        Positions found = (Positions) ALL.get(name);
        if (found == null) {
            ALL.putIfAbsent(name, new Positions());
            found = (Positions) ALL.get(name);
        }
        return found;
    }

    /** Note that a record was looked at; a query that starts again may go back. */
    public void reach(int partition, long offset) {
        if (partition < MOST_PARTITIONS) {
            next.lazySet(partition, offset + 1);
        }
    }

    /** Return a line `query log-topic partition offset` for each partition with records. */
    public static String text() {
        StringBuilder lines = new StringBuilder();
        Iterator<Map.Entry<String, Positions>> each = ALL.entrySet().iterator();
        while (each.hasNext()) {
            Map.Entry<String, Positions> entry = (Map.Entry<String, Positions>) each.next();
            AtomicLongArray next = ((Positions) entry.getValue()).next;
            for (int partition = 0; partition < MOST_PARTITIONS; partition++) {
                long offset = next.get(partition);
                if (offset > 0) {
                    lines.append((String) entry.getKey()).append(' ').append(partition);
                    lines.append(' ').append(offset).append('\n');
                }
            }
        }
        return lines.toString();
    }
}
