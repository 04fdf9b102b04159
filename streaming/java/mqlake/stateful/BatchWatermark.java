package mqlake.stateful;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.spark.TaskContext;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The watermark below which Spark takes nothing any more in the batch that a task belongs to.
 *
 * <p>That is the one of the batch before. It stands in the query's checkpoint before this batch
 * begins, so a batch that comes again finds the same.
 */
record BatchWatermark(String batch, long watermarkMs) {
    private static final ObjectMapper JSON = new ObjectMapper();

    /** Before any: nothing is late. */
    static final long NONE = Long.MIN_VALUE;

    private static final String BATCH = "streaming.sql.batchId";

    private static final ConcurrentHashMap<String, BatchWatermark> KNOWN =
            new ConcurrentHashMap<>();

    /**
     * Return it in milliseconds.
     *
     * @throws IllegalStateException The checkpoint does not say.
     */
    static long of(String checkpoint) {
        String batch = TaskContext.get().getLocalProperty(BATCH);
        if (batch == null) {
            throw new IllegalStateException("no number of a batch");
        }
        BatchWatermark known = KNOWN.get(checkpoint);
        if (known == null || !known.batch.equals(batch)) {
            known = new BatchWatermark(batch, read(checkpoint, Long.parseLong(batch) - 1));
            KNOWN.put(checkpoint, known);
        }
        return known.watermarkMs;
    }

    private static long read(String checkpoint, long batch) {
        if (batch < 0) {
            return NONE;
        }
        try {
            List<String> lines =
                    Files.readAllLines(Path.of(checkpoint, "offsets", Long.toString(batch)));
            JsonNode metadata = JSON.readTree(lines.get(1));
            long found = metadata.get("batchWatermarkMs").asLong();
            return found == 0 ? NONE : found;
        } catch (IOException error) {
            throw new IllegalStateException("the checkpoint cannot be read: " + error, error);
        }
    }
}
