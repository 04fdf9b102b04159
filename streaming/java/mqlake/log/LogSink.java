package mqlake.log;

import mqlake.spark.AppendedUpdates;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

import java.io.IOException;
import java.io.Serializable;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;

/**
 * A sink of streaming queries that appends rows to the log, by a {@link LogSender}: (topic STRING,
 * partition INT, key BINARY, value BINARY, headers ARRAY of (key STRING, value BINARY)). A sink
 * that makes other records of its rows extends it.
 *
 * <p>Options: those of a Kafka client, each with `kafka.` before it; `query` and `run` name the
 * sender that is used, `events`, `undelivered` and, if there is one, `awaited` its log topics.
 */
public class LogSink implements TableProvider, SupportsWrite {
    private static final String CLIENT_PREFIX = "kafka.";

    /** Sends what comes of a row; travels to the executors. */
    public interface Sending extends Serializable {
        void send(TaskBatch batch, InternalRow row) throws IOException;
    }

    /**
     * Return what comes of a row; here it is a record.
     *
     * @param client How a Kafka client reaches the log.
     */
    protected Sending sending(Map<String, String> client, Map<String, String> options) {
        return TaskBatch::send;
    }

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return new StructType();
    }

    @Override
    public Table getTable(
            StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return this;
    }

    @Override
    public String name() {
        return "log";
    }

    @Override
    public StructType schema() {
        return new StructType();
    }

    @Override
    public Set<TableCapability> capabilities() {
        return Set.of(TableCapability.STREAMING_WRITE, TableCapability.ACCEPT_ANY_SCHEMA);
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        Map<String, String> options = info.options().asCaseSensitiveMap();
        HashMap<String, String> client = new HashMap<>();
        options.forEach(
                (name, value) -> {
                    if (name.startsWith(CLIENT_PREFIX)) {
                        client.put(name.substring(CLIENT_PREFIX.length()), value);
                    }
                });
        return new Builder(
                new WriterFactory(
                        sending(client, options),
                        options.get("query"),
                        options.get("run"),
                        client,
                        options.get("events"),
                        options.get("awaited"),
                        options.get("undelivered")));
    }

    /** Replayed rows are appended again; readers drop those that they have seen. */
    static final class Builder implements AppendedUpdates, Write, StreamingWrite {
        private final WriterFactory factory;

        Builder(WriterFactory factory) {
            this.factory = factory;
        }

        @Override
        public Write build() {
            return this;
        }

        @Override
        public StreamingWrite toStreaming() {
            return this;
        }

        @Override
        public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
            return factory;
        }

        @Override
        public boolean useCommitCoordinator() {
            return false;
        }

        @Override
        public void commit(long epochId, WriterCommitMessage[] messages) {}

        @Override
        public void abort(long epochId, WriterCommitMessage[] messages) {}
    }

    /** Travels to the executors. */
    record WriterFactory(
            Sending sending,
            String query,
            String run,
            HashMap<String, String> client,
            String events,
            String awaited,
            String undelivered)
            implements StreamingDataWriterFactory {
        @Override
        public DataWriter<InternalRow> createWriter(int partitionId, long taskId, long epochId) {
            return new Writer(
                    sending, LogSenders.of(query, run, client, events, awaited, undelivered));
        }
    }

    /** Of one task. */
    static final class Writer implements DataWriter<InternalRow> {
        private final Sending sending;
        private final TaskBatch batch;

        Writer(Sending sending, LogSender sender) {
            this.sending = sending;
            this.batch = sender.begin().enter();
        }

        @Override
        public void write(InternalRow row) throws IOException {
            sending.send(batch, row);
        }

        /** Every record sent is in the log, or it is told why not. */
        @Override
        public WriterCommitMessage commit() throws IOException {
            batch.awaitAcknowledged();
            return new Committed();
        }

        @Override
        public void abort() {}

        @Override
        public void close() {
            TaskBatch.leave();
        }
    }

    static final class Committed implements WriterCommitMessage {
        private static final long serialVersionUID = 1L;
    }
}
