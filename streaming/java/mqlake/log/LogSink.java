package mqlake.log;

import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
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
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A sink of streaming queries that appends rows to the log, by a {@link LogSender}:
 * (topic STRING, partition INT, key BINARY, value BINARY, headers ARRAY of (key STRING, value BINARY)).
 *
 * Options: those of a Kafka client, each with `kafka.` before it; `query` and `run` name the sender that is
 * used, `events`, `undelivered` and, if there is one, `awaited` its log topics.
 */
public final class LogSink implements TableProvider, SupportsWrite {
    private static final String CLIENT_PREFIX = "kafka.";

    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return new StructType();
    }

    public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
        return this;
    }

    public String name() {
        return "log";
    }

    public StructType schema() {
        return new StructType();
    }

    public Set capabilities() {
        return new HashSet(
                Arrays.asList(
                        new Object[] {
                            TableCapability.STREAMING_WRITE, TableCapability.ACCEPT_ANY_SCHEMA
                        }));
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        Map options = info.options().asCaseSensitiveMap();
        HashMap<String, String> client = new HashMap<String, String>();
        Object[] names = options.keySet().toArray();
        for (int i = 0; i < names.length; i++) {
            String name = (String) names[i];
            if (name.startsWith(CLIENT_PREFIX)) {
                client.put(name.substring(CLIENT_PREFIX.length()), (String) options.get(name));
            }
        }
        return new Builder(
                new WriterFactory(
                        (String) options.get("query"), (String) options.get("run"), client,
                        (String) options.get("events"), (String) options.get("awaited"),
                        (String) options.get("undelivered")));
    }

    /** Replayed rows are appended again; whoever reads them drops what it has seen. */
    static final class Builder
            implements WriteBuilder, SupportsStreamingUpdateAsAppend, Write, StreamingWrite {
        private final WriterFactory factory;

        Builder(WriterFactory factory) {
            this.factory = factory;
        }

        public Write build() {
            return this;
        }

        public StreamingWrite toStreaming() {
            return this;
        }

        public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
            return factory;
        }

        public boolean useCommitCoordinator() {
            return false;
        }

        public void commit(long epochId, WriterCommitMessage[] messages) {}

        public void abort(long epochId, WriterCommitMessage[] messages) {}
    }

    /** Travels to the executors. */
    static final class WriterFactory implements StreamingDataWriterFactory {
        private static final long serialVersionUID = 1L;

        private final String query;
        private final String run;
        private final HashMap<String, String> client;
        private final String events;
        private final String awaited;
        private final String undelivered;

        WriterFactory(
                String query, String run, HashMap<String, String> client, String events,
                String awaited, String undelivered) {
            this.query = query;
            this.run = run;
            this.client = client;
            this.events = events;
            this.awaited = awaited;
            this.undelivered = undelivered;
        }

        /** The raw signature: Janino writes no bridge methods. */
        public DataWriter createWriter(int partitionId, long taskId, long epochId) {
            return new Writer(LogSenders.of(query, run, client, events, awaited, undelivered));
        }
    }

    /** Of one task. */
    static final class Writer implements DataWriter {
        private final Lot lot;

        Writer(LogSender sender) {
            this.lot = sender.begin().enter();
        }

        /** The raw signature, as above. */
        public void write(Object record) throws java.io.IOException {
            lot.send((InternalRow) record);
        }

        /** What was sent is in the log, or it is told why not. */
        public WriterCommitMessage commit() throws java.io.IOException {
            lot.awaitAcknowledged();
            return new Committed();
        }

        public void abort() {}

        public void close() {
            Lot.leave();
        }
    }

    static final class Committed implements WriterCommitMessage {
        private static final long serialVersionUID = 1L;
    }
}
