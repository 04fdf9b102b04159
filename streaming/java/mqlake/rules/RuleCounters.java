package mqlake.rules;

import mqlake.Vocabulary;

import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.LongAdder;

/** What became of the records that a rule was given, since this JVM began; of all its versions. */
public final class RuleCounters {
    /** Of a failure of which no dead letter is to tell. */
    public static final long LEFT_OUT = -1;

    /** `<tenant>/<rule>` to its counters. */
    static final ConcurrentHashMap<String, RuleCounters> ALL = new ConcurrentHashMap<>();

    public final LongAdder matched = new LongAdder();
    public final LongAdder passed = new LongAdder();
    public final LongAdder noResult = new LongAdder();
    private final LongAdder failed = new LongAdder();
    public final LongAdder outputs = new LongAdder();

    /** Of stateful rules: messages that came too late. */
    public final LongAdder late = new LongAdder();

    /** Of stateful rules: from the time of an output (the end of its window) to its writing. */
    public final LongAdder lagMs = new LongAdder();

    public final ProcessorTime evaluation = new ProcessorTime();

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

    /** Failures that do not count for that: their publishers had their part. */
    private long beyond;

    private final Blame blame = new Blame();

    /** Failures of which no dead letter has told yet. */
    private long withoutLetter;

    private RuleCounters() {}

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
            known.reset();
            known.isDeleted = false;
        }
    }

    /** Let all rules begin at zero. */
    static void resetAll() {
        ALL.values().forEach(RuleCounters::reset);
    }

    private void reset() {
        matched.reset();
        passed.reset();
        noResult.reset();
        forgetFailures();
        outputs.reset();
        late.reset();
        lagMs.reset();
        evaluation.reset();
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

    /** Count a failure that is of no single message, or speaks against the rule itself. */
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

    /**
     * Count a failure of the version that a change has put in force, on a message.
     *
     * @param topic null for a rule that reads no other
     * @return how many failures before it no dead letter tells of, LEFT_OUT when none is to tell of
     *     this
     */
    public synchronized long fail(long change, MessageRow row, String topic, long nowMs) {
        boolean isTold = blame.note(row.publisher(), row.address(), topic, nowMs);
        if (blame.isOfRule()) {
            fail(change);
        } else {
            failed.increment();
            beyond++;
        }
        if (!isTold) {
            withoutLetter++;
            return LEFT_OUT;
        }
        long before = withoutLetter;
        withoutLetter = 0;
        return before;
    }

    /** Return what a dead letter says, with the failures that have none. */
    public static String letterText(String error, long before) {
        return before == 0
                ? error
                : error + " (since the last dead letter " + before + " more failures had none)";
    }

    private synchronized void forgetFailures() {
        failed.reset();
        failedOfChange = 0;
        beyond = 0;
        withoutLetter = 0;
        blame.clear();
    }

    /** Take note of a failure; return of how many an event is to tell now, 0 when none is. */
    public synchronized long toTell(long nowMs) {
        untold++;
        if (nowMs / 1000 != second) {
            second = nowMs / 1000;
            told = 0;
        }
        if (told == Vocabulary.MAX_FAILURES_TOLD) {
            return 0;
        }
        told++;
        long count = untold;
        untold = 0;
        return count;
    }

    /** Return the value of the metrics record. */
    public synchronized String toJson() {
        return "{\"matched\":"
                + matched.sum()
                + ",\"passed\":"
                + passed.sum()
                + ",\"no_result\":"
                + noResult.sum()
                + ",\"failed\":"
                + failed.sum()
                + ",\"failing\":{\"change\":"
                + failingChange
                + ",\"failed\":"
                + failedOfChange
                + ",\"beyond\":"
                + beyond
                + "}"
                + ",\"outputs\":"
                + outputs.sum()
                + ",\"late\":"
                + late.sum()
                + ",\"lag_ms\":"
                + lagMs.sum()
                + ",\"evaluation_ns\":"
                + evaluation.sum()
                + "}";
    }
}
