package mqlake.log;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.InvalidOffsetException;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;

/**
 * Keeps a table of this JVM up to date from a log topic of one partition, on a thread of its own.
 *
 * <p>The log may go away and come back: the table then stays as it was, barriers wait, and nothing
 * is answered that was not applied.
 */
public abstract class LogFollower<T> implements Runnable {
    private static final Logger LOG = LoggerFactory.getLogger(LogFollower.class);

    /** Longest wait of one message for the first reading of the topic; the task fails after it. */
    private static final long CATCH_UP_MS = 60000;

    /** Longest wait of a barrier; its sender repeats one that is not answered. */
    protected static final long BARRIER_MS = 10000;

    /** A barrier that waited so long may be of a log that is gone: the topic's end is looked up. */
    private static final long DOUBT_MS = 250;

    private static final Duration POLL = Duration.ofSeconds(30);
    private static final Duration LOOK_UP = Duration.ofSeconds(10);
    private static final long FIRST_BACK_OFF_MS = 100;
    private static final long LAST_BACK_OFF_MS = 5000;

    private final Map<String, String> config;
    protected final TopicPartition topic;

    /** Null until the topic was read to its end once. */
    protected volatile T table;

    /** Last offset of the topic that the table holds; -1 before any. */
    private volatile long applied = -1;

    private volatile String trouble = "not read yet";

    /** Only the thread's own: what the table holds is not to be built upon. */
    private boolean readAgain = true;

    protected final Object lock = new Object();

    // Guarded by the lock: how a caller in doubt asks the thread what the log has.
    long lookupsWanted;
    protected volatile long lookupsDone;
    protected long end;

    /** True after a barrier beyond the end: where one is, more may be, and they need not wait. */
    private boolean doubting;

    /** The log topics that exist; null before the first look-up. */
    protected volatile Set<String> logTopics;

    /** The consumer while it can be woken up. */
    private KafkaConsumer<byte[], byte[]> polling;

    protected LogFollower(Map<String, String> config, String logTopic) {
        this.config = config;
        this.topic = new TopicPartition(logTopic, 0);
    }

    /** Return an empty table. */
    protected abstract T newTable();

    /** Apply a record; one of another form is ignored with a warning. */
    protected abstract void apply(ConsumerRecord<byte[], byte[]> record, T target);

    /** Called with a table that has all there was, before anybody is given it. */
    protected void caughtUp(T target) {}

    protected void start(String threadName) {
        Thread thread = new Thread(this, threadName);
        thread.setDaemon(true);
        thread.setContextClassLoader(LogFollower.class.getClassLoader());
        thread.start();
    }

    /**
     * Return the table once the topic was read to its end.
     *
     * @throws IllegalStateException Not within a minute: to go on without it would lose messages.
     */
    protected T read() {
        T current = table;
        return current != null ? current : awaitTable();
    }

    private T awaitTable() {
        long deadline = now() + CATCH_UP_MS;
        synchronized (lock) {
            while (table == null) {
                long left = deadline - now();
                if (left <= 0) {
                    throw new IllegalStateException(
                            "log topic "
                                    + topic.topic()
                                    + " was not read within "
                                    + CATCH_UP_MS / 1000
                                    + " s: "
                                    + trouble);
                }
                pause(left);
            }
            return table;
        }
    }

    /**
     * Wait until the table holds everything up to and including an offset of the topic.
     *
     * @return False when that cannot be said: the topic ends before the offset (a barrier of a log
     *     that is gone), or the wait took too long. The barrier must then stay unanswered.
     */
    public boolean awaitApplied(long offset) {
        return applied >= offset || awaitAppliedSlowly(offset);
    }

    private boolean awaitAppliedSlowly(long offset) {
        long start = now();
        long lookup = Long.MAX_VALUE;
        synchronized (lock) {
            long doubt = doubting ? 0 : DOUBT_MS;
            while (applied < offset) {
                long waited = now() - start;
                if (waited >= BARRIER_MS) {
                    LOG.warn(
                            "barrier not answered: offset "
                                    + offset
                                    + " of "
                                    + topic
                                    + " not reached in "
                                    + BARRIER_MS
                                    + " ms, at "
                                    + applied
                                    + "; trouble: "
                                    + trouble);
                    return false;
                }
                if (waited >= doubt && lookup == Long.MAX_VALUE) {
                    lookup = wantLookup();
                }
                // Only a look-up that began after this barrier was seen proves the offset missing.
                if (lookupsDone >= lookup && offset >= end) {
                    doubting = true;
                    LOG.warn(
                            "barrier not answered: offset "
                                    + offset
                                    + " is beyond the end "
                                    + end
                                    + " of "
                                    + topic);
                    return false;
                }
                pause(waited < doubt ? doubt - waited : BARRIER_MS - waited);
            }
            doubting = false;
            return true;
        }
    }

    /** Return the number of the look-up to wait for; the caller holds the lock. */
    protected long wantLookup() {
        lookupsWanted++;
        if (polling != null) {
            polling.wakeup();
        }
        return lookupsWanted;
    }

    public long applied() {
        return applied;
    }

    @Override
    public void run() {
        long backOff = FIRST_BACK_OFF_MS;
        while (true) {
            long before = applied;
            try {
                follow();
            } catch (Throwable error) {
                trouble = error.toString();
                LOG.warn("reading " + topic + " failed, trying again in " + backOff + " ms", error);
            }
            backOff =
                    applied > before ? FIRST_BACK_OFF_MS : Math.min(backOff * 2, LAST_BACK_OFF_MS);
            try {
                Thread.sleep(backOff);
            } catch (InterruptedException error) {
                return;
            }
        }
    }

    private void follow() {
        Properties properties = ClientOptions.of(config);
        properties.put("auto.offset.reset", "none");
        properties.put("enable.auto.commit", "false");
        properties.put("allow.auto.create.topics", "false");
        // The broker answers one request of a connection after the other: behind a fetch that waits
        // for records, a look-up waits as long, and with it all messages.
        properties.put("fetch.max.wait.ms", "500");
        KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(
                        properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        try {
            consumer.assign(topics());
            if (!readAgain) {
                consumer.seek(topic, applied + 1);
            }
            while (true) {
                try {
                    if (readAgain) {
                        catchUp(consumer);
                    }
                    ConsumerRecords<byte[], byte[]> records = poll(consumer);
                    applyAll(records, table);
                    setApplied(consumer.position(topic) - 1, table);
                } catch (WakeupException error) {
                    // Somebody is in doubt: the next poll is a look-up.
                } catch (InvalidOffsetException error) {
                    // The topic was replaced or cut: the table may no longer be true.
                    LOG.warn(
                            topic
                                    + " no longer has offset "
                                    + (applied + 1)
                                    + ", reading all of it again");
                    applied = -1;
                    readAgain = true;
                }
            }
        } finally {
            consumer.close(Duration.ofSeconds(1));
        }
    }

    /** Read the whole topic into a new table; the old one, if any, is used until then. */
    private void catchUp(KafkaConsumer<byte[], byte[]> consumer) {
        long start = now();
        T fresh = newTable();
        long until = endOffset(consumer);
        long count = 0;
        consumer.seekToBeginning(topics());
        while (consumer.position(topic, LOOK_UP) < until) {
            ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofSeconds(1));
            applyAll(records, fresh);
            count += records.count();
            if (records.isEmpty() && now() - start > CATCH_UP_MS) {
                throw new IllegalStateException("no answer from the log in " + CATCH_UP_MS + " ms");
            }
        }
        caughtUp(fresh);
        readAgain = false;
        setApplied(consumer.position(topic) - 1, fresh);
        LOG.info("read " + topic + ": " + count + " records in " + (now() - start) + " ms");
    }

    private void applyAll(ConsumerRecords<byte[], byte[]> records, T target) {
        for (ConsumerRecord<byte[], byte[]> record : records) {
            apply(record, target);
        }
    }

    private void setApplied(long offset, T current) {
        synchronized (lock) {
            table = current;
            trouble = "none";
            applied = offset;
            lock.notifyAll();
        }
    }

    /** Wait for records, or look up what the log has when somebody is in doubt. */
    private ConsumerRecords<byte[], byte[]> poll(KafkaConsumer<byte[], byte[]> consumer) {
        long wanted;
        synchronized (lock) {
            wanted = lookupsWanted;
            if (wanted == lookupsDone) {
                polling = consumer;
            }
        }
        if (wanted == lookupsDone) {
            try {
                return consumer.poll(POLL);
            } finally {
                synchronized (lock) {
                    polling = null;
                }
            }
        }
        long found = endOffset(consumer);
        Set<String> names = consumer.listTopics(LOOK_UP).keySet();
        synchronized (lock) {
            end = found;
            logTopics = names;
            lookupsDone = wanted;
            lock.notifyAll();
        }
        return ConsumerRecords.empty();
    }

    private long endOffset(KafkaConsumer<byte[], byte[]> consumer) {
        return consumer.endOffsets(topics(), LOOK_UP).get(topic);
    }

    private List<TopicPartition> topics() {
        return Collections.singletonList(topic);
    }

    /** The caller holds the lock. */
    protected void pause(long milliseconds) {
        try {
            lock.wait(milliseconds);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("interrupted while waiting for " + topic, error);
        }
    }

    protected static long now() {
        return System.nanoTime() / 1000000;
    }
}
