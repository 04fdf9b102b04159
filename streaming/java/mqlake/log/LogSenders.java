package mqlake.log;

import org.apache.kafka.common.TopicPartition;

import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The senders of this JVM: one for each run of a query, which takes over what the last one has
 * left.
 */
public final class LogSenders {
    private static final ConcurrentHashMap<String, Entry> ALL = new ConcurrentHashMap<>();

    /** One for each query: a run that begins asks the log, and others do not wait for that. */
    private static final ConcurrentHashMap<String, Object> LOCKS = new ConcurrentHashMap<>();

    private LogSenders() {}

    private static final class Entry {
        final String run;

        /** The one before it. */
        final String replaced;

        final LogSender sender;

        Entry(String run, String replaced, LogSender sender) {
            this.run = run;
            this.replaced = replaced;
            this.sender = sender;
        }
    }

    /**
     * Return the sender of a run; it knows what earlier runs have left undelivered.
     *
     * @param run Of the query; each start has another.
     * @param client How a Kafka client reaches the log.
     * @param events Log topic that is told of records that are left out.
     * @param awaited Log topic whose records are there when a batch is done, however long that
     *     takes: a run that begins behind it reads them; null without one.
     * @param undelivered Log topic of this query, of one partition, that keeps everything.
     * @throws IllegalStateException A later run has begun, or what is undelivered was not read.
     */
    public static LogSender of(
            String query,
            String run,
            Map<String, String> client,
            String events,
            String awaited,
            String undelivered) {
        synchronized (lock(query)) {
            Entry last = ALL.get(query);
            if (last != null && run.equals(last.replaced)) {
                throw new IllegalStateException("this run of " + query + " is over");
            }
            if (last != null && last.run.equals(run)) {
                return last.sender; // When it has ended the run has to, too.
            }
            Set<TopicPartition> suspects = new HashSet<>();
            if (last != null) {
                last.sender.fail(new IllegalStateException("the query was started again"), null);
                suspects = last.sender.suspects();
            }
            String replaced = last == null ? null : last.run;
            LogSender sender =
                    new LogSender(
                            query,
                            LogLimits.of(client),
                            events,
                            awaited,
                            new Undelivered(
                                    client,
                                    undelivered,
                                    run,
                                    UUID.randomUUID().toString(),
                                    replaced),
                            suspects,
                            LogSender.connect(query, client));
            // Also when it fails at once: the next one has to know the suspects.
            ALL.put(query, new Entry(run, replaced, sender));
            try {
                Redelivery.begin(sender);
                Watch.begin(sender);
            } catch (RuntimeException error) {
                sender.fail(error, null);
                throw error;
            }
            return sender;
        }
    }

    /**
     * Return the sender of queries that share one: a run of it ends with this JVM, or by a failure.
     */
    public static LogSender shared(
            String name, Map<String, String> client, String events, String undelivered) {
        synchronized (lock(name)) {
            Entry last = ALL.get(name);
            boolean isUp = last != null && last.sender.failure == null;
            String run = isUp ? last.run : UUID.randomUUID().toString();
            return of(name, run, client, events, null, undelivered);
        }
    }

    private static Object lock(String query) {
        LOCKS.putIfAbsent(query, new Object());
        return LOCKS.get(query);
    }

    /**
     * Return a line for each target whose records wait: `query log-topic partition records bytes
     * oldest`, the last in UTC epoch milliseconds.
     */
    public static String waiting() {
        Entry[] all = ALL.values().toArray(new Entry[0]); // not waiting for one that begins
        StringBuilder lines = new StringBuilder();
        for (int i = 0; i < all.length; i++) {
            all[i].sender.addWaiting(lines);
        }
        return lines.toString();
    }
}
