package mqlake.log;

import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;

/** A record that is sent to its target. */
final class Sent implements Callback {
    final LogSender sender;

    /** Of whoever sends it, and is told when it is left out. */
    final TaskBatch batch;

    final Target target;
    final ProducerRecord<byte[], byte[]> record;
    final long bytes;

    /** Where it waited, when it is sent again; then it is durable before. Else negative. */
    final long waitedAt;

    /** When it was handed to the producer; guarded by the sender's monitor. */
    long sinceMs;

    /** The thread that hands it to the producer, while it does; only that one asks. */
    Thread handing;

    /** Why the producer has not taken it. */
    Exception refused;

    /** Of the batch, that it was sent in; null when it waited. */
    TaskBatch.Range range;

    /** Guarded by the sender's monitor: whether the log has it, here or there, or never will. */
    boolean settled;

    Sent(
            LogSender sender,
            TaskBatch batch,
            Target target,
            ProducerRecord<byte[], byte[]> record,
            long bytes,
            long waitedAt) {
        this.sender = sender;
        this.batch = batch;
        this.target = target;
        this.record = record;
        this.bytes = bytes;
        this.waitedAt = waitedAt;
        this.settled = waitedAt >= 0;
    }

    /** Of the producer's thread; of the sending one for what the producer does not take. */
    @Override
    public void onCompletion(RecordMetadata metadata, Exception error) {
        sender.sent(this, error);
    }

    /** The same record on its way to the log topic of undelivered ones. */
    static final class Waiting implements Callback {
        private final Sent sent;

        Waiting(Sent sent) {
            this.sent = sent;
        }

        @Override
        public void onCompletion(RecordMetadata metadata, Exception error) {
            sent.sender.waits(sent, metadata, error);
        }
    }
}
