package mqlake.rules;

import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.LongAdder;

/** What became of the records that a rule was given, since this JVM began; of all its versions. */
public final class RuleCounters {
    /** One evaluation of so many is timed. */
    public static final int SAMPLE = 64;
    /** Events rule.failed a second; as in mqlake/rule_records.py. */
    static final int MAX_TOLD = 10;

    /** `<tenant>/<rule>` to its counters. */
    static final ConcurrentHashMap<String, RuleCounters> ALL =
            new ConcurrentHashMap<>();

    public final LongAdder matched = new LongAdder();
    public final LongAdder passed = new LongAdder();
    public final LongAdder noResult = new LongAdder();
    private final LongAdder failed = new LongAdder();
    public final LongAdder outputs = new LongAdder();
    /** Of rules with memory: messages that came too late. */
    public final LongAdder late = new LongAdder();
    /** Of rules with memory: from the time of an output (the end of its window) to its writing. */
    public final LongAdder lagMs = new LongAdder();
    public final LongAdder evaluationNs = new LongAdder();
    /** Failures that no event has told of, and how many events were told in the present second. */
    private long untold;
    private int told;
    private long second;

    /** What was written last, empty for nothing; the writing thread's. */
    volatile String written = "";
    volatile boolean isDeleted;

    /** The newest version that has failed, by its change, and how often. */
    private long failingChange;
    private long failedOfChange;

    private RuleCounters() {
    }

    public static RuleCounters of(String name) {
        RuleCounters known = ALL.get(name);
        if (known != null) {
            return known;
        }
        ALL.putIfAbsent(name, new RuleCounters());
        return ALL.get(name);
    }

    /** Let a rule that is deleted have no counters: another one of its name begins at zero. */
    static void delete(String name) {
        of(name).isDeleted = true;
    }

    /** Begin to count for a rule that was deleted before. */
    static void define(String name) {
        RuleCounters known = ALL.get(name);
        if (known != null && known.isDeleted) {
            known.matched.reset();
            known.passed.reset();
            known.noResult.reset();
            known.forgetFailures();
            known.outputs.reset();
            known.late.reset();
            known.lagMs.reset();
            known.evaluationNs.reset();
            known.isDeleted = false;
        }
    }

    /** Forget a deleted rule of which nothing is left. */
    static void forget(String name) {
        RuleCounters known = ALL.get(name);
        if (known != null && known.isDeleted && known.written.isEmpty()) {
            ALL.remove(name);
        }
    }

    /** Return the value to be written now, null for a tombstone, `written` when there is none. */
    String next() {
        if (isDeleted) {
            return written.isEmpty() ? written : null;
        }
        return toJson();
    }

    /** Count a failure of the version that a change has put in force. */
    public synchronized void fail(long change) {
        failed.increment();
        if (change > failingChange) {
            failingChange = change;
            failedOfChange = 0;
        }
        if (change == failingChange) {
            failedOfChange++;
        }
    }

    private synchronized void forgetFailures() {
        failed.reset();
        failedOfChange = 0;
    }

    /** Take note of a failure; return of how many an event is to tell now, 0 when none is. */
    public synchronized long toTell(long nowMs) {
        untold++;
        if (nowMs / 1000 != second) {
            second = nowMs / 1000;
            told = 0;
        }
        if (told == MAX_TOLD) {
            return 0;
        }
        told++;
        long count = untold;
        untold = 0;
        return count;
    }

    /** Return the value of the metrics record. */
    public synchronized String toJson() {
        return "{\"matched\":" + matched.sum() + ",\"passed\":" + passed.sum()
                + ",\"no_result\":" + noResult.sum() + ",\"failed\":" + failed.sum()
                + ",\"failing\":{\"change\":" + failingChange
                + ",\"failed\":" + failedOfChange + "}"
                + ",\"outputs\":" + outputs.sum() + ",\"late\":" + late.sum()
                + ",\"lag_ms\":" + lagMs.sum() + ",\"evaluation_ns\":" + evaluationNs.sum() + "}";
    }
}
