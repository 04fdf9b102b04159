package mqlake.stateful;

import mqlake.Vocabulary;

import org.apache.spark.api.java.function.VoidFunction2;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;

import java.util.HashMap;
import java.util.Map;

/**
 * What foreachBatch calls for a stateful rule: a batch (at BIGINT microseconds, row STRING, hops
 * BIGINT) into the log, each row with its place in the batch.
 */
public final class OutputWriter implements VoidFunction2<Dataset<Row>, Long> {
    private static final long serialVersionUID = 1L;

    private final Map<String, String> clientConfig;
    private final String spec;
    private final boolean untilEnd;

    /**
     * @param untilEnd Whether what is later than the end of the run is left out.
     */
    public OutputWriter(Map<String, String> clientConfig, String spec, boolean untilEnd) {
        this.clientConfig = new HashMap<>(clientConfig);
        this.spec = spec;
        this.untilEnd = untilEnd;
    }

    @Override
    public void call(Dataset<Row> batch, Long number) {
        batch.coalesce(1)
                .sortWithinPartitions(Vocabulary.AT_COLUMN, Vocabulary.ROW_COLUMN)
                .foreachPartition(new OutputTask(clientConfig, spec, untilEnd, number));
    }
}
