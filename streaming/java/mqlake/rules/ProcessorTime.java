package mqlake.rules;

import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.concurrent.atomic.LongAdder;

/**
 * Processor time of what threads do for each of many messages, not counting what they wait for.
 *
 * <p>To ask for it is a call of the system, so one message of many is measured, and counts for all
 * of these. Once one has taken long each is measured, for a minute: as one of many a single second
 * would be minutes.
 */
public final class ProcessorTime {
    /** One message of so many is measured, by its offset. */
    static final int SAMPLE = 256;

    private static final int SHIFT = 64 - 8; // what is left of a long is below SAMPLE

    /** From this on a message has taken long. */
    static final long LONG_NS = 1_000_000;

    private static final long LONG_FOR_NS = 60_000_000_000L;

    /** 2^64 by the golden ratio: offsets that come at regular distances are spread. */
    private static final long SPREAD = 0x9E3779B97F4A7C15L;

    private static final long NOT_MEASURED = -1;
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    private final LongAdder ns = new LongAdder();
    private volatile boolean isWatched;
    private volatile boolean isLong;
    private volatile long longUntil;

    /**
     * Begin with a message, on the thread that ends with it; return what {@link #end} is to be
     * given.
     */
    public long begin(long offset) {
        return isLong || isWatched || isOfSample(offset)
                ? THREADS.getCurrentThreadCpuTime()
                : NOT_MEASURED;
    }

    public void end(long offset, long begin) {
        if (begin == NOT_MEASURED) {
            return;
        }
        long took = THREADS.getCurrentThreadCpuTime() - begin;
        boolean isForMany = !isLong && took < LONG_NS;
        if (took >= LONG_NS) {
            longUntil = System.nanoTime() + LONG_FOR_NS;
            isLong = true;
        } else if (isLong && System.nanoTime() - longUntil > 0) {
            isLong = false;
        }
        isWatched = false;
        if (!isForMany) {
            ns.add(took);
        } else if (isOfSample(offset)) {
            ns.add(took * SAMPLE);
        }
    }

    /** Measure the next message, whichever it is: this one may have taken long. */
    public void watch() {
        isWatched = true;
    }

    private static boolean isOfSample(long offset) {
        return (offset * SPREAD) >>> SHIFT == 0;
    }

    /** Add what was measured elsewhere. */
    public void add(long more) {
        ns.add(more);
    }

    public long sum() {
        return ns.sum();
    }

    void reset() {
        ns.reset();
    }
}
