package mqlake.rules;

import mqlake.Vocabulary;
import mqlake.log.LogLimits;
import mqlake.spark.Scala;

import org.apache.spark.sql.Row;
import org.apache.spark.sql.api.java.UDF8;

import scala.collection.Seq;

import java.time.InstantSource;
import java.util.HashMap;
import java.util.Map;

/**
 * Spark function: a record of mqlake.inbound or mqlake.events to what the rules make of it, an
 * array of (log topic, partition, key, value, headers).
 *
 * <p>Arguments: log topic, partition, offset, timestamp ms, key, value, names and values of the
 * headers. Which records come here is RuleFilter's matter. The record formats are those of
 * mqlake/records/messages.py and mqlake/records/rules.py.
 */
public final class RuleFunction
        implements UDF8<
                String, Integer, Long, Long, byte[], byte[], Seq<String>, Seq<byte[]>, Row[]> {
    private static final long serialVersionUID = 1L;
    private static final String[] NO_NAMES = {};
    private static final byte[][] NO_VALUES = {};

    private final Map<String, String> clientConfig;
    private final int outputPartitions;
    private transient volatile RuleFollower follower;
    private transient volatile RuleEvaluation evaluation;

    /** Output partitions: of mqlake.outputs. */
    public RuleFunction(Map<String, String> clientConfig, int outputPartitions) {
        this.clientConfig = new HashMap<>(clientConfig);
        this.outputPartitions = outputPartitions;
    }

    @Override
    public Row[] call(
            String logTopic,
            Integer partition,
            Long offset,
            Long timestampMs,
            byte[] key,
            byte[] value,
            Seq<String> headerNames,
            Seq<byte[]> headerValues) {
        RuleFollower rules = follower;
        if (rules == null) {
            evaluation =
                    new RuleEvaluation(
                            Vocabulary.EVENTS,
                            Vocabulary.OUTPUTS,
                            outputPartitions,
                            Vocabulary.DEAD_LETTERS,
                            LogLimits.of(clientConfig),
                            InstantSource.system());
            rules = RuleFollower.of(clientConfig, Vocabulary.RULES);
            RuleMetrics.start(clientConfig, Vocabulary.METRICS);
            follower = rules;
        }
        return evaluation.evaluate(
                rules.table(),
                logTopic,
                partition,
                offset,
                timestampMs,
                key,
                value,
                names(headerNames),
                values(headerValues));
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
