package mqlake.streaming;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Keeps the route table of this JVM up to date from the log topic of routes.
 *
 * There is one per JVM and log, whatever the number of queries and sessions.
 */
public final class RouteFollower extends LogFollower {
    private static final Logger LOG = LoggerFactory.getLogger(RouteFollower.class);
    private static final ConcurrentHashMap<String, RouteFollower> FOLLOWERS =
            new ConcurrentHashMap<String, RouteFollower>();

    /** A delivery topic that was not there is looked up again after so long, not for each record. */
    private static final long MISSING_MS = 1000;

    /** Log topic to when it was not there. */
    private final ConcurrentHashMap<String, Long> missing = new ConcurrentHashMap<String, Long>();

    private RouteFollower(Map<String, String> config, String logTopic) {
        super(config, logTopic);
    }

    /** Return the follower of one log in this JVM, started at the first call. */
    public static RouteFollower of(Map<String, String> config, String logTopic) {
        String name = logTopic + "@" + config.get("bootstrap.servers");
        RouteFollower follower = (RouteFollower) FOLLOWERS.get(name);
        if (follower != null) {
            return follower;
        }
        synchronized (FOLLOWERS) {
            follower = (RouteFollower) FOLLOWERS.get(name);
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
        return (RouteTable) read();
    }

    /**
     * Tell whether a delivery topic exists; writing to one that does not would fail the query, again
     * at each start: a gateway that is gone for good, or a record that somebody else wrote.
     */
    public boolean exists(String logTopic) {
        Set<String> known = logTopics;
        return known != null && known.contains(logTopic) || existsAfterLookup(logTopic);
    }

    private boolean existsAfterLookup(String logTopic) {
        long start = now();
        Long missed = (Long) missing.get(logTopic);
        if (missed != null && start - missed.longValue() < MISSING_MS) {
            return false;
        }
        synchronized (lock) {
            long lookup = wantLookup();
            while (lookupsDone < lookup) {
                long left = start + BARRIER_MS - now();
                if (left <= 0) {
                    return true; // The log does not answer: whoever writes to it will tell why.
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

    Object newTable() {
        return new RouteTable();
    }

    void apply(ConsumerRecord<byte[], byte[]> record, Object target) {
        String[] parts = record.key() == null
                ? new String[0]
                : new String((byte[]) record.key(), StandardCharsets.UTF_8).split("/", 3);
        if (parts.length != 3 || !apply(parts, (byte[]) record.value(), (RouteTable) target)) {
            LOG.warn(topic + " offset " + record.offset() + " is not a route, ignored");
        }
    }

    /** Apply a route's value: a count of members, and for share groups a strategy and a time. */
    private static boolean apply(String[] parts, byte[] value, RouteTable target) {
        if (value == null) {
            target.apply(parts[0], parts[1], parts[2], 0, RouteTable.ROUND_ROBIN, 0);
            return true;
        }
        String[] words = new String(value, StandardCharsets.US_ASCII).split(" ");
        try {
            int members = Integer.parseUnsignedInt(words[0]);
            int strategy = words.length == 3 ? RouteTable.strategy(words[1]) : RouteTable.ROUND_ROBIN;
            long since = words.length == 3 ? Long.parseLong(words[2]) : 0;
            if (members < 0 || strategy < 0 || words.length != 1 && words.length != 3) {
                return false;
            }
            target.apply(parts[0], parts[1], parts[2], members, strategy, since);
            return true;
        } catch (NumberFormatException error) {
            return false;
        }
    }
}
