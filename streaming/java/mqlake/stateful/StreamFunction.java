package mqlake.stateful;

import java.util.HashMap;
import java.util.Map;
import mqlake.rules.RuleFunction;
import mqlake.rules.RuleMetrics;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.api.java.UDF8;
import scala.collection.Seq;

/**
 * Spark function: a record to what one stream of a rule with memory has of it, an array of at most one
 * row: time of the event in microseconds, then the stream's columns.
 *
 * Arguments: log topic, partition, offset, timestamp ms, key, value, names and values of the headers.
 * Which records come here is StreamFilter's matter.
 */
public final class StreamFunction
        implements UDF8<
                String, Integer, Long, Long, byte[], byte[], Seq<String>, Seq<byte[]>, Row[]> {
    private static final long serialVersionUID = 1L;

    private final Map<String, String> clientConfig;
    private final Map<String, String> logTopics;
    private final String spec;
    private transient volatile StreamEvaluation evaluation;

    /** Log topics: rules, metrics, dead_letters and events, by these names. */
    public StreamFunction(
            Map<String, String> clientConfig, Map<String, String> logTopics, String spec) {
        this.clientConfig = new HashMap<>(clientConfig);
        this.logTopics = new HashMap<>(logTopics);
        this.spec = spec;
    }

    @Override
    public Row[] call(
            String logTopic, Integer partition, Long offset, Long timestampMs,
            byte[] key, byte[] value, Seq<String> headerNames, Seq<byte[]> headerValues) {
        StreamEvaluation stream = evaluation;
        if (stream == null) {
            RuleMetrics.start(clientConfig, logTopics.get("metrics"));
            stream = new StreamEvaluation(clientConfig, logTopics, StreamSpec.read(spec));
            evaluation = stream;
        }
        return stream.evaluate(
                partition, offset, timestampMs, key, value, RuleFunction.names(headerNames),
                RuleFunction.values(headerValues));
    }
}
