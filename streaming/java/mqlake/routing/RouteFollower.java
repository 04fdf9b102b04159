package mqlake.routing;

import mqlake.Vocabulary;
import mqlake.log.LogFollower;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Keeps the route table of this JVM up to date from the log topic of routes.
 *
 * <p>There is one per JVM and log, whatever the number of queries and sessions.
 */
public final class RouteFollower extends LogFollower<RouteTable> {
    private static final Logger LOG = LoggerFactory.getLogger(RouteFollower.class);
    private static final ConcurrentHashMap<String, RouteFollower> FOLLOWERS =
            new ConcurrentHashMap<>();

    /**
     * A delivery topic that was not there is looked up again after so long, not for each record.
     */
    private static final long MISSING_MS = 1000;

    /**
     * A barrier waits so long for a route that the log does not have; the gateway sends another.
     *
     * <p>Messages behind a barrier that is given up do not reach its subscription, so this is long
     * beside the time a log may take between two records of one moment; only a gateway that died
     * just then, or a record that the log refused, costs it.
     */
    private static final long DOUBT_MS = 2000;

    /**
     * Gateway to its run, one of whose barriers was given up: the others do not wait as long in
     * turn. Until a route of that run comes.
     */
    private final ConcurrentHashMap<String, String> doubted = new ConcurrentHashMap<>();

    /** Log topic to when it was not there. */
    private final ConcurrentHashMap<String, Long> missing = new ConcurrentHashMap<>();

    private RouteFollower(Map<String, String> config, String logTopic) {
        super(config, logTopic);
    }

    /** Return the follower of one log in this JVM, started at the first call. */
    public static RouteFollower of(Map<String, String> config, String logTopic) {
        String name = logTopic + "@" + config.get("bootstrap.servers");
        RouteFollower follower = FOLLOWERS.get(name);
        if (follower != null) {
            return follower;
        }
        synchronized (FOLLOWERS) {
            follower = FOLLOWERS.get(name);
            if (follower == null) {
                follower = new RouteFollower(config, logTopic);
                follower.start("mqlake-routes");
                FOLLOWERS.put(name, follower);
            }
            return follower;
        }
    }

    /**
     * Return the table once the topic was read to its end.
     *
     * @throws IllegalStateException Not within a minute.
     */
    public RouteTable table() {
        return read();
    }

    /**
     * Wait until the table holds a gateway's own route record, by its run and number.
     *
     * @return False when that cannot be said: the log does not have the record, although it was
     *     given time to come, or the wait took too long. The barrier must then stay unanswered.
     */
    public boolean awaitApplied(String gateway, String incarnation, long number) {
        return table().applied(gateway, incarnation) >= number
                || awaitAppliedSlowly(gateway, incarnation, number);
    }

    private boolean awaitAppliedSlowly(String gateway, String incarnation, long number) {
        long start = now();
        long lookup = Long.MAX_VALUE;
        synchronized (lock) {
            while (table.applied(gateway, incarnation) < number) {
                if (incarnation.equals(doubted.get(gateway))) {
                    return false;
                }
                long waited = now() - start;
                if (waited >= DOUBT_MS && lookup == Long.MAX_VALUE) {
                    lookup = wantLookup();
                }
                // Up to where the log ended after it was given time, the table must hold all.
                boolean isMissing = lookupsDone >= lookup && applied() >= end - 1;
                if (isMissing || waited >= BARRIER_MS) {
                    doubted.put(gateway, incarnation);
                    LOG.warn(
                            "barrier not answered: no route "
                                    + number
                                    + " of "
                                    + gateway
                                    + " run "
                                    + incarnation
                                    + " in "
                                    + topic
                                    + " after "
                                    + waited
                                    + " ms");
                    return false;
                }
                pause(waited < DOUBT_MS ? DOUBT_MS - waited : BARRIER_MS - waited);
            }
            return true;
        }
    }

    /**
     * Tell whether a delivery topic exists: a barrier or a question of a gateway that is gone for
     * good is no message, and nobody misses it.
     */
    public boolean exists(String logTopic) {
        Set<String> known = logTopics;
        return known != null && known.contains(logTopic) || existsAfterLookup(logTopic);
    }

    private boolean existsAfterLookup(String logTopic) {
        long start = now();
        Long missed = missing.get(logTopic);
        if (missed != null && start - missed.longValue() < MISSING_MS) {
            return false;
        }
        synchronized (lock) {
            long lookup = wantLookup();
            while (lookupsDone < lookup) {
                long left = start + BARRIER_MS - now();
                if (left <= 0) {
                    return true; // The log does not answer: its writers will tell why.
                }
                pause(left);
            }
        }
        if (logTopics.contains(logTopic)) {
            missing.remove(logTopic);
            return true;
        }
        if (missing.put(logTopic, Long.valueOf(now())) == null) {
            LOG.warn("nothing is delivered to " + logTopic + ": there is no such log topic");
        }
        return false;
    }

    @Override
    protected RouteTable newTable() {
        return new RouteTable();
    }

    @Override
    protected void apply(ConsumerRecord<byte[], byte[]> record, RouteTable target) {
        String[] parts =
                record.key() == null
                        ? new String[0]
                        : new String(record.key(), StandardCharsets.UTF_8).split("/", 3);
        if (parts.length != 3) {
            LOG.warn(topic + " offset " + record.offset() + " is not a route, ignored");
            return;
        }
        Headers headers = record.headers();
        String by = text(headers, Vocabulary.HEADER_BY);
        long since = number(headers, Vocabulary.HEADER_SINCE);
        if (by != null && target.isPast(parts[0], by, since)) {
            LOG.warn(topic + ": a route of an earlier run of " + parts[0] + " came late, ignored");
        } else if (!apply(parts, record, target)) {
            LOG.warn(topic + " offset " + record.offset() + " is not a route, ignored");
        } else {
            applyNumber(record, parts, by, since, target);
        }
    }

    /** Note the number of a record that a gateway has written of itself; others' have none. */
    private void applyNumber(
            ConsumerRecord<byte[], byte[]> record,
            String[] parts,
            String by,
            long since,
            RouteTable target) {
        long number = number(record.headers(), Vocabulary.HEADER_NUMBER);
        if (by == null || number < 0) {
            return;
        }
        boolean isShared = RouteTable.isShared(parts[2]);
        target.applyNumber(parts[0], by, since, number, isShared, record.offset());
        doubted.remove(parts[0], by);
    }

    private static String text(Headers headers, String name) {
        Header found = headers.lastHeader(name);
        return found == null || found.value() == null
                ? null
                : new String(found.value(), StandardCharsets.US_ASCII);
    }

    /** Return a header's number; -1 without one that can be read. */
    private static long number(Headers headers, String name) {
        String digits = text(headers, name);
        try {
            return digits == null ? -1 : Long.parseLong(digits);
        } catch (NumberFormatException error) {
            LOG.warn("a route has a header " + name + " that is no number, ignored");
            return -1;
        }
    }

    /** Apply a route's value: a count of members, and for share groups a strategy and a time. */
    private static boolean apply(
            String[] parts, ConsumerRecord<byte[], byte[]> record, RouteTable target) {
        byte[] value = record.value();
        long offset = record.offset();
        long timestampMs = record.timestamp();
        if (value == null) {
            target.apply(
                    parts[0],
                    parts[1],
                    parts[2],
                    0,
                    Vocabulary.STRATEGY_ROUND_ROBIN,
                    0,
                    offset,
                    timestampMs);
            return true;
        }
        String[] words = new String(value, StandardCharsets.US_ASCII).split(" ");
        try {
            int members = Integer.parseUnsignedInt(words[0]);
            int strategy =
                    words.length == 3
                            ? RouteTable.strategy(words[1])
                            : Vocabulary.STRATEGY_ROUND_ROBIN;
            long since = words.length == 3 ? Long.parseLong(words[2]) : 0;
            if (members < 0 || strategy < 0 || words.length != 1 && words.length != 3) {
                return false;
            }
            target.apply(
                    parts[0], parts[1], parts[2], members, strategy, since, offset, timestampMs);
            return true;
        } catch (NumberFormatException error) {
            return false;
        }
    }
}
