package mqlake.stateful;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.api.java.function.VoidFunction2;
import org.apache.spark.sql.Dataset;

/**
 * What foreachBatch calls for a rule with memory: a batch (at BIGINT microseconds, row STRING, hops
 * BIGINT) into the log, each row with its place in the batch.
 */
public final class OutputWriter implements VoidFunction2 {
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
        this.clientConfig = new HashMap<String, String>(clientConfig);
        this.logTopics = new HashMap<String, String>(logTopics);
        this.spec = spec;
        this.untilEnd = untilEnd;
    }

    /** The raw signature: Janino writes no bridge methods. */
    public void call(Object batch, Object number) {
        ((Dataset) batch).coalesce(1)
                .sortWithinPartitions("at", new String[] {"row"})
                .foreachPartition(new OutputTask(
                        clientConfig, logTopics, spec, untilEnd, ((Long) number).longValue()));
    }
}
