package mqlake.rules;

import java.util.HashMap;
import java.util.Map;
import mqlake.log.LogLimits;
import mqlake.spark.Scala;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.api.java.UDF8;
import scala.collection.Seq;

/**
 * Spark function: a record of mqlake.inbound or mqlake.events to what the rules make of it, an array of
 * (log topic, partition, key, value, headers).
 *
 * Arguments: log topic, partition, offset, timestamp ms, key, value, names and values of the headers.
 * Which records come here is RuleFilter's matter. The record formats are those of mqlake/records.py and
 * mqlake/rule_records.py.
 */
public final class RuleFunction
        implements UDF8<
                String, Integer, Long, Long, byte[], byte[], Seq<String>, Seq<byte[]>, Row[]> {
    private static final long serialVersionUID = 1L;
    private static final String[] NO_NAMES = {};
    private static final byte[][] NO_VALUES = {};

    private final Map<String, String> clientConfig;
    private final Map<String, String> logTopics;
    private transient volatile RuleFollower follower;
    private transient volatile RuleEvaluation evaluation;

    /** Log topics: rules, metrics, events, outputs and dead_letters, by these names. */
    public RuleFunction(Map<String, String> clientConfig, Map<String, String> logTopics) {
        this.clientConfig = new HashMap<>(clientConfig);
        this.logTopics = new HashMap<>(logTopics);
    }

    @Override
    public Row[] call(
            String logTopic, Integer partition, Long offset, Long timestampMs,
            byte[] key, byte[] value, Seq<String> headerNames, Seq<byte[]> headerValues) {
        RuleFollower rules = follower;
        if (rules == null) {
            evaluation = new RuleEvaluation(
                    logTopics.get("events"), logTopics.get("outputs"),
                    logTopics.get("dead_letters"), LogLimits.of(clientConfig));
            rules = RuleFollower.of(clientConfig, logTopics.get("rules"));
            RuleMetrics.start(clientConfig, logTopics.get("metrics"));
            follower = rules;
        }
        return evaluation.evaluate(
                rules.table(), logTopic, partition, offset, timestampMs, key, value,
                names(headerNames), values(headerValues));
    }

    /** Return the names of headers, none for null. */
    public static String[] names(Seq<String> headers) {
        return headers == null ? NO_NAMES : Scala.list(headers).toArray(NO_NAMES);
    }

    /** Return the values of headers, none for null. */
    public static byte[][] values(Seq<byte[]> headers) {
        return headers == null ? NO_VALUES : Scala.list(headers).toArray(NO_VALUES);
    }
}
