package mqlake.rules;

import mqlake.Vocabulary;
import mqlake.log.Positions;
import mqlake.routing.TopicFilters;

import org.apache.spark.sql.api.java.UDF5;

import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

/**
 * Spark function: (log topic, key, value, partition, offset) to whether any rule has a filter for
 * the record. A record that has none, as most, costs no more than this.
 *
 * <p>On the barrier of a change it waits until the change is in the table.
 */
public final class RuleFilter implements UDF5<String, byte[], byte[], Integer, Long, Boolean> {
    private static final long serialVersionUID = 1L;
    private static final byte[] BARRIER =
            Vocabulary.RULES_BARRIER_PREFIX.getBytes(StandardCharsets.US_ASCII);

    private final Map<String, String> clientConfig;
    private final long begun;
    private transient volatile RuleFollower follower;
    private transient volatile Positions messages;
    private transient volatile Positions events;

    /** Begun: number of a change; nothing is evaluated before it is in the table. */
    public RuleFilter(Map<String, String> clientConfig, long begun) {
        this.clientConfig = new HashMap<>(clientConfig);
        this.begun = begun;
    }

    @Override
    public Boolean call(String logTopic, byte[] key, byte[] value, Integer partition, Long offset) {
        boolean isEvent = Vocabulary.EVENTS.equals(logTopic);
        Positions positions = isEvent ? events : messages;
        if (positions == null) {
            positions = Positions.of(Vocabulary.QUERY_RULES, logTopic);
            if (isEvent) {
                events = positions;
            } else {
                messages = positions;
            }
        }
        positions.reach(partition, offset);
        if (key == null) {
            return false;
        }
        RuleFollower rules = follower;
        if (rules == null) {
            rules = RuleFollower.of(clientConfig, Vocabulary.RULES);
            rules.awaitDecided(begun);
            follower = rules;
        }
        if (key.length > 0 && key[0] == 0) {
            awaitChange(key, rules);
            // A version that ends here is done, also when nothing follows.
            positions.passOver(partition, offset);
            return false;
        }
        int slash = slash(key);
        if (slash < 0) {
            return false; // not ours: somebody else wrote to the topic
        }
        RuleTable table = rules.table();
        String tenant = new String(key, 0, slash, StandardCharsets.UTF_8);
        if (!table.hasRules(tenant)) {
            return false;
        }
        byte[] topic = key;
        if (isEvent) {
            MessageRow.Event event = MessageRow.Event.read(value);
            if (event == null) {
                return false;
            }
            topic = TopicFilters.key(tenant, event.topicName);
        }
        return table.matches(topic);
    }

    /** Tell whether a key is that of the barrier of a change. */
    public static boolean isBarrier(byte[] key) {
        for (int i = 0; i < BARRIER.length; i++) {
            if (key.length <= i || key[i] != BARRIER[i]) {
                return false;
            }
        }
        return true;
    }

    /** Wait until a change is in the table, if that is its barrier. */
    public static void awaitChange(byte[] key, RuleFollower rules) {
        if (!isBarrier(key)) {
            return;
        }
        try {
            rules.awaitDecided(
                    Long.parseLong(
                            new String(
                                    key,
                                    BARRIER.length,
                                    key.length - BARRIER.length,
                                    StandardCharsets.US_ASCII)));
        } catch (NumberFormatException error) {
            return; // somebody else's
        }
    }

    /** Return where the tenant ends in a key; -1 when it is not the key of a message. */
    public static int slash(byte[] key) {
        for (int i = 0; i < key.length; i++) {
            if (key[i] == '/') {
                return i;
            }
        }
        return -1;
    }
}
