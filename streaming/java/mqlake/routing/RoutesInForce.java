package mqlake.routing;

import mqlake.Vocabulary;
import mqlake.log.LogFollower;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.header.Header;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.atomic.AtomicLongArray;

/**
 * Up to which route share groups are as the routes say, at each place of the inbound log topic.
 *
 * <p>Routes come into force in a partition where a barrier stands that follows them, and nowhere
 * else: so the gateway of a group that a message goes to depends on the log alone, and a router
 * that repeats itself sends the message to the same one. Where a barrier did that is noted in a log
 * topic, for a router that begins behind it. The note goes out with the deliveries: a router begins
 * again before what has not gone out, and comes to the barrier again.
 */
public final class RoutesInForce
        extends LogFollower<ConcurrentHashMap<Integer, RoutesInForce.Notes>> {
    private static final Logger LOG = LoggerFactory.getLogger(RoutesInForce.class);
    private static final ConcurrentHashMap<String, RoutesInForce> FOLLOWERS =
            new ConcurrentHashMap<>();

    /** In partitions from here on the newest routes count. */
    private static final int MOST_PARTITIONS = 1024;

    /** So many notes of a partition are kept. */
    private static final int MOST_NOTES = 10000;

    /** Where each partition goes on. */
    private final AtomicLongArray next = new AtomicLongArray(MOST_PARTITIONS);

    private final AtomicLongArray inForce = new AtomicLongArray(MOST_PARTITIONS);

    private RoutesInForce(Map<String, String> config, String logTopic) {
        super(config, logTopic);
        for (int partition = 0; partition < MOST_PARTITIONS; partition++) {
            next.set(partition, -1);
        }
    }

    /** Return that of one log in this JVM, started at the first call. */
    public static RoutesInForce of(Map<String, String> config, String logTopic) {
        String name = logTopic + "@" + config.get("bootstrap.servers");
        synchronized (FOLLOWERS) {
            RoutesInForce found = FOLLOWERS.get(name);
            if (found == null) {
                found = new RoutesInForce(config, logTopic);
                found.start("mqlake-routes-in-force");
                FOLLOWERS.put(name, found);
            }
            return found;
        }
    }

    /**
     * Return up to which route share groups count for a message, and note that it was looked at.
     *
     * <p>One thread at a time asks for a partition, in the order of its offsets; who begins
     * anywhere else waits until all notes are read.
     *
     * @return An offset of the routes; {@link RouteTable#NEWEST} before any barrier that is known.
     * @throws IllegalStateException The notes cannot be read within a minute.
     */
    long at(int partition, long offset) {
        if (partition >= MOST_PARTITIONS) {
            return RouteTable.NEWEST;
        }
        long expected = next.get(partition);
        if (expected != offset) {
            long noted = noted(partition, offset);
            long before = inForce.get(partition);
            // Further on, what a barrier has said here counts although its note may be on its way.
            boolean goesOn = expected >= 0 && expected < offset && before != RouteTable.NEWEST;
            boolean isNoted = noted != RouteTable.NEWEST;
            inForce.set(partition, goesOn && !(isNoted && noted > before) ? before : noted);
        }
        next.lazySet(partition, offset + 1);
        return inForce.get(partition);
    }

    /**
     * Put routes in force from a barrier on.
     *
     * @return True when that is new, and to be noted.
     */
    boolean advance(int partition, long routesOffset) {
        if (partition >= MOST_PARTITIONS) {
            return false;
        }
        long before = inForce.get(partition);
        if (before != RouteTable.NEWEST && before >= routesOffset) {
            return false;
        }
        inForce.set(partition, routesOffset);
        return true;
    }

    private long noted(int partition, long offset) {
        Notes notes = read().get(partition);
        Map.Entry<Long, Long> last =
                notes == null ? null : notes.byOffset.floorEntry(Long.valueOf(offset));
        return last == null ? RouteTable.NEWEST : last.getValue().longValue();
    }

    /** What is noted of a partition: offset of a barrier to that of the routes. */
    static final class Notes {
        final ConcurrentSkipListMap<Long, Long> byOffset = new ConcurrentSkipListMap<>();
    }

    @Override
    protected ConcurrentHashMap<Integer, Notes> newTable() {
        return new ConcurrentHashMap<>();
    }

    /**
     * Take a note: `<partition>:<offset>:<timestamp>`, a line feed, and the offset of the routes.
     */
    @Override
    protected void apply(
            ConsumerRecord<byte[], byte[]> record, ConcurrentHashMap<Integer, Notes> target) {
        Header source = record.headers().lastHeader(Vocabulary.HEADER_SOURCE);
        String[] lines =
                source == null || source.value() == null
                        ? new String[0]
                        : new String(source.value(), StandardCharsets.ISO_8859_1).split("\n");
        String[] position = lines.length == 2 ? lines[0].split(":") : lines;
        try {
            if (position.length == 3) {
                note(
                        target,
                        Integer.valueOf(position[0]),
                        Long.valueOf(position[1]),
                        Long.valueOf(lines[1]));
                return;
            }
        } catch (NumberFormatException error) {
            // Told below.
        }
        LOG.warn(topic + " offset " + record.offset() + " is not a note of routes, ignored");
    }

    private static void note(
            ConcurrentHashMap<Integer, Notes> all, Integer partition, Long offset, Long routes) {
        Notes notes = all.get(partition);
        if (notes == null) {
            notes = new Notes();
            all.put(partition, notes);
        }
        notes.byOffset.put(offset, routes);
        if (notes.byOffset.size() > MOST_NOTES) {
            notes.byOffset.pollFirstEntry();
        }
    }
}
