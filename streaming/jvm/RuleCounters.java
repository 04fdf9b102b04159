package mqlake.streaming;

import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.LongAdder;

/** What became of the records that a rule was given, since this JVM began; of all its versions. */
final class RuleCounters {
    /** One evaluation of so many is timed. */
    static final int SAMPLE = 64;

    /** `<tenant>/<rule>` to its counters. */
    static final ConcurrentHashMap<String, RuleCounters> ALL =
            new ConcurrentHashMap<String, RuleCounters>();

    final LongAdder matched = new LongAdder();
    final LongAdder passed = new LongAdder();
    final LongAdder noResult = new LongAdder();
    final LongAdder failed = new LongAdder();
    final LongAdder outputs = new LongAdder();
    final LongAdder evaluationNs = new LongAdder();
    /** What was written last; only the writing thread's. */
    String written = "";

    private RuleCounters() {
    }

    static RuleCounters of(String name) {
        RuleCounters known = (RuleCounters) ALL.get(name);
        if (known != null) {
            return known;
        }
        ALL.putIfAbsent(name, new RuleCounters());
        return (RuleCounters) ALL.get(name);
    }

    /** Return the value of the metrics record. */
    String toJson() {
        return "{\"matched\":" + matched.sum() + ",\"passed\":" + passed.sum()
                + ",\"no_result\":" + noResult.sum() + ",\"failed\":" + failed.sum()
                + ",\"outputs\":" + outputs.sum() + ",\"evaluation_ns\":" + evaluationNs.sum() + "}";
    }
}
