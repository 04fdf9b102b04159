package mqlake.stateful;

import java.util.HashMap;
import java.util.Map;
import mqlake.rules.RuleFunction;
import mqlake.rules.RuleMetrics;
import org.apache.spark.sql.api.java.UDF8;

/**
 * Spark function: a record to what one stream of a rule with memory has of it, an array of at most one
 * row: time of the event in microseconds, then the stream's columns.
 *
 * Arguments: log topic, partition, offset, timestamp ms, key, value, names and values of the headers.
 * Which records come here is StreamFilter's matter.
 */
public final class StreamFunction implements UDF8 {
    private static final long serialVersionUID = 1L;

    private final Map<String, String> clientConfig;
    private final Map<String, String> logTopics;
    private final String spec;
    private transient volatile StreamEvaluation evaluation;

    /** Log topics: rules, metrics, dead_letters and events, by these names. */
    public StreamFunction(
            Map<String, String> clientConfig, Map<String, String> logTopics, String spec) {
        this.clientConfig = new HashMap<String, String>(clientConfig);
        this.logTopics = new HashMap<String, String>(logTopics);
        this.spec = spec;
    }

    /** The raw signature: Janino writes no bridge methods. */
    public Object call(
            Object logTopic, Object partition, Object offset, Object timestampMs,
            Object key, Object value, Object headerNames, Object headerValues) {
        StreamEvaluation stream = evaluation;
        if (stream == null) {
            RuleMetrics.start(clientConfig, (String) logTopics.get("metrics"));
            stream = new StreamEvaluation(clientConfig, logTopics, StreamSpec.read(spec));
            evaluation = stream;
        }
        return stream.evaluate(
                ((Integer) partition).intValue(), ((Long) offset).longValue(),
                ((Long) timestampMs).longValue(), (byte[]) key, (byte[]) value,
                RuleFunction.names(headerNames), RuleFunction.values(headerValues));
    }
}
