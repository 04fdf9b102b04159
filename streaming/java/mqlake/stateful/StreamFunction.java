package mqlake.stateful;

import mqlake.Vocabulary;
import mqlake.rules.RuleFunction;
import mqlake.rules.RuleMetrics;

import org.apache.spark.sql.Row;
import org.apache.spark.sql.api.java.UDF8;

import scala.collection.Seq;

import java.util.HashMap;
import java.util.Map;

/**
 * Spark function: a record to what one stream of a stateful rule has of it, an array of at most one
 * row: time of the event in microseconds, then the stream's columns.
 *
 * <p>Arguments: log topic, partition, offset, timestamp ms, key, value, names and values of the
 * headers. Which records come here is StreamFilter's matter.
 */
public final class StreamFunction
        implements UDF8<
                String, Integer, Long, Long, byte[], byte[], Seq<String>, Seq<byte[]>, Row[]> {
    private static final long serialVersionUID = 1L;

    private final Map<String, String> clientConfig;
    private final String spec;
    private transient volatile StreamEvaluation evaluation;

    public StreamFunction(Map<String, String> clientConfig, String spec) {
        this.clientConfig = new HashMap<>(clientConfig);
        this.spec = spec;
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
        StreamEvaluation stream = evaluation;
        if (stream == null) {
            RuleMetrics.start(clientConfig, Vocabulary.METRICS);
            stream = new StreamEvaluation(clientConfig, StreamSpec.read(spec));
            evaluation = stream;
        }
        return stream.evaluate(
                partition,
                offset,
                timestampMs,
                key,
                value,
                RuleFunction.names(headerNames),
                RuleFunction.values(headerValues));
    }
}
