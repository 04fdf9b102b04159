package mqlake.log;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.HashMap;
import java.util.concurrent.locks.ReentrantLock;

/** What a task sends in a batch, and what of it was left out. */
public final class TaskBatch {
    private static final ThreadLocal<TaskBatch> OF_TASK = new ThreadLocal<>();

    private final LogSender sender;
    final LeftOut leftOut;

    /** Held while it is told what was left out, until that is certain. */
    final ReentrantLock telling = new ReentrantLock();

    private final HashMap<String, Target[]> targets = new HashMap<>();

    /** Records that are nowhere in the log yet; guarded by the sender's monitor. */
    int left;

    /** Likewise: what lies between marks, the oldest first; the last is what is sent now. */
    private final ArrayDeque<Range> ranges = new ArrayDeque<>();

    /** Likewise: how much of what was left out is told, as {@link LeftOut} counts. */
    private long told;

    TaskBatch(LogSender sender) {
        this.sender = sender;
        this.leftOut = new LeftOut(sender.query);
        ranges.add(new Range());
    }

    /** What was sent between two marks. */
    static final class Range {
        /** Of these records, nowhere in the log yet. */
        int left;

        /** Then this had been left out so far. */
        long leftOut;

        Positions positions;
        int partition;
        long end;
    }

    /** Return that of the task that this thread runs; null without one. */
    static TaskBatch ofTask() {
        return OF_TASK.get();
    }

    /** Be that of the task that this thread runs, until {@link #leave}. */
    public TaskBatch enter() {
        OF_TASK.set(this);
        sender.open.add(this);
        return this;
    }

    public static void leave() {
        TaskBatch batch = OF_TASK.get();
        if (batch != null) {
            batch.sender.open.remove(batch);
            OF_TASK.remove();
        }
    }

    /** All that comes of a partition before an offset was sent; it is done when the log has it. */
    void mark(Positions positions, int partition, long offset) {
        synchronized (sender) {
            Range last = ranges.peekLast();
            last.positions = positions;
            last.partition = partition;
            last.end = offset;
            last.leftOut = leftOut.added();
            ranges.add(new Range());
            finish();
        }
    }

    /** Return what is sent now, with one record more; with the sender's monitor held. */
    Range add() {
        left++;
        Range last = ranges.peekLast();
        last.left++;
        return last;
    }

    /** The log has a record, or never will; with the sender's monitor held. */
    void settle(Range range) {
        left--;
        if (--range.left == 0) {
            range.leftOut = leftOut.added();
            finish();
        }
    }

    /** So much of what was left out is told. */
    void told(long leftOut) {
        synchronized (sender) {
            told = leftOut;
            finish();
        }
    }

    /** Say how far all is done: not beyond what was left out and is not told yet. */
    private void finish() {
        while (ranges.size() > 1
                && ranges.peekFirst().left == 0
                && ranges.peekFirst().leftOut <= told) {
            Range first = ranges.pollFirst();
            first.positions.finish(first.partition, first.end);
        }
    }

    /** Send (topic, partition, key, value, headers); no partition is the first. */
    public void send(InternalRow row) throws IOException {
        byte[] key = row.isNullAt(2) ? null : row.getBinary(2);
        byte[] value = row.isNullAt(3) ? null : row.getBinary(3);
        RecordHeaders headers = row.isNullAt(4) ? new RecordHeaders() : headers(row.getArray(4));
        send(
                row.getUTF8String(0).toString(),
                row.isNullAt(1) ? 0 : row.getInt(1),
                key,
                value,
                headers);
    }

    /** Return an ARRAY of (key STRING, value BINARY) as headers. */
    public static RecordHeaders headers(ArrayData given) {
        RecordHeaders headers = new RecordHeaders();
        for (int i = 0; i < given.numElements(); i++) {
            InternalRow header = given.getStruct(i, 2);
            headers.add(
                    header.getUTF8String(0).toString(),
                    header.isNullAt(1) ? null : header.getBinary(1));
        }
        return headers;
    }

    /** Send a record with its headers. */
    public void send(String topic, int partition, byte[] key, byte[] value, RecordHeaders headers)
            throws IOException {
        sender.send(
                this,
                target(topic, partition),
                key,
                value,
                headers,
                LogLimits.size(key, value, headers));
    }

    private Target target(String topic, int partition) {
        Target[] known = targets.get(topic);
        if (known == null || known.length <= partition) {
            known = known == null ? new Target[partition + 1] : Arrays.copyOf(known, partition + 1);
            targets.put(topic, known);
        }
        if (known[partition] == null) {
            known[partition] = sender.target(new TopicPartition(topic, partition));
        }
        return known[partition];
    }

    public static byte[] text(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** Wait until the log has all of it, or it is told why not. */
    public void awaitAcknowledged() throws IOException {
        sender.await(this);
    }
}
