package mqlake.stateful;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.api.java.function.VoidFunction2;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;

/**
 * What foreachBatch calls for a rule with memory: a batch (at BIGINT microseconds, row STRING, hops
 * BIGINT) into the log, each row with its place in the batch.
 */
public final class OutputWriter implements VoidFunction2<Dataset<Row>, Long> {
    private static final long serialVersionUID = 1L;

    private final Map<String, String> clientConfig;
    private final Map<String, String> logTopics;
    private final String spec;
    private final boolean untilEnd;

    /**
     * Log topics: rules, metrics, outputs, dead_letters and events, by these names.
     *
     * @param untilEnd Whether what is later than the end of the run is left out.
     */
    public OutputWriter(
            Map<String, String> clientConfig, Map<String, String> logTopics, String spec,
            boolean untilEnd) {
        this.clientConfig = new HashMap<>(clientConfig);
        this.logTopics = new HashMap<>(logTopics);
        this.spec = spec;
        this.untilEnd = untilEnd;
    }

    @Override
    public void call(Dataset<Row> batch, Long number) {
        batch.coalesce(1)
                .sortWithinPartitions("at", "row")
                .foreachPartition(
                        new OutputTask(clientConfig, logTopics, spec, untilEnd, number));
    }
}
