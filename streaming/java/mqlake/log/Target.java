package mqlake.log;

import java.util.ArrayDeque;
import java.util.Iterator;

/**
 * A partition that a query sends to, and how it is with it. Whoever sends to it holds its monitor:
 * so what is sent stays in order when the way changes.
 */
final class Target {
    /** Records go to it. */
    static final int FLOWING = 0;

    /** It does not answer: its records go to the log topic of undelivered ones. */
    static final int AWAY = 1;

    /** There is no such log topic: its records are left out. */
    static final int GONE = 2;

    final String topic;
    final int partition;

    /**
     * Whether what is sent to it must be there when a batch is done: it does not wait elsewhere.
     */
    final boolean isAwaited;

    /** Changed under both monitors, the target's and the sender's. */
    volatile int state = FLOWING;

    /** How large a record may be. */
    volatile int mostBytes;

    // Guarded by the sender's monitor.
    /** What the producer has and the partition not, or not certainly. */
    final ArrayDeque<Sent> pending = new ArrayDeque<>();

    long pendingBytes;

    /** Whether it has taken a record since it is away: until then one is tried at a time. */
    boolean answers;

    /** It has refused a record, and is not tried again before that. */
    long notBeforeMs;

    /** Records on the way to the log topic of undelivered ones. */
    int onTheWay;

    /**
     * None that is there, or on the way there, and still to be sent is before this; negative: none.
     */
    long first = -1;

    /** The last that is there. */
    long last = -1;

    /** How many these are, with those on the way, and how long the oldest has waited about. */
    long undelivered;

    long undeliveredBytes;
    long oldestMs;

    /** Looks in a row that have not found its log topic; only of the thread that sends again. */
    int looksGone;

    Target(String topic, int partition, boolean isAwaited) {
        this.topic = topic;
        this.partition = partition;
        this.isAwaited = isAwaited;
    }

    /** Whether one goes at a time: a batch of the producer may be larger than it takes. */
    boolean takesSingles() {
        return mostBytes <= LogSender.BATCH_BYTES;
    }

    /** Forget what waited, with both monitors held: it was sent, or nobody wants it any more. */
    void nothingWaits() {
        first = -1;
        last = -1;
        undelivered = 0;
        undeliveredBytes = 0;
    }

    /**
     * Return the bytes of the largest record that the producer has; with the sender's monitor held.
     */
    long largestPending() {
        long largest = 0;
        Iterator<Sent> each = pending.iterator();
        while (each.hasNext()) {
            largest = Math.max(largest, each.next().bytes);
        }
        return largest;
    }

    /** Whether the producer has records that wait, too; with the sender's monitor held. */
    boolean isSentAgain() {
        Iterator<Sent> each = pending.iterator();
        while (each.hasNext()) {
            if (each.next().waitedAt >= 0) {
                return true;
            }
        }
        return false;
    }

    /** As Kafka names a partition. */
    @Override
    public String toString() {
        return topic + "-" + partition;
    }
}
