package mqlake.rules;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;

/** One version of a rule and where it counts; immutable but for its counters. */
public final class RuleVersion {
    final String tenant;
    final String rule;
    final int version;
    final String[] filters;

    /** Whether it reads more than one topic. */
    final boolean isWide;

    /**
     * Log topic to the first offset of each partition that counts, and the first that no longer
     * does.
     */
    private final HashMap<String, long[][]> ranges;

    /** Null when the expression does not compile, or is not evaluated here. */
    final CompiledRule code;

    /** Null when it is not evaluated here, or by a query of its own. */
    final RuleCounters counters;

    /** Of a stateful rule: the change that put it in force; 0 for others. */
    final long change;

    /** Of a stateful rule: when it was put out of force. */
    public final long endedAtMs;

    // As they stand in every record of the rule.
    final byte[] key;
    final byte[] versionHeader;

    RuleVersion(
            String tenant,
            String rule,
            int version,
            String[] filters,
            HashMap<String, long[][]> ranges,
            CompiledRule code,
            RuleCounters counters,
            long change,
            long endedAtMs) {
        this.tenant = tenant;
        this.rule = rule;
        this.version = version;
        this.filters = filters;
        this.isWide = isWide(filters);
        this.ranges = ranges;
        this.code = code;
        this.counters = counters;
        this.change = change;
        this.endedAtMs = endedAtMs;
        this.key = (tenant + "/" + rule).getBytes(StandardCharsets.UTF_8);
        this.versionHeader = Integer.toString(version).getBytes(StandardCharsets.US_ASCII);
    }

    /** Tell whether filters match more than one topic. */
    public static boolean isWide(String[] filters) {
        return filters.length != 1 || filters[0].indexOf('+') >= 0 || filters[0].indexOf('#') >= 0;
    }

    /** Tell whether this version is the one for a record; a partition that is new counts from 0. */
    public boolean counts(String logTopic, int partition, long offset) {
        long[][] range = ranges.get(logTopic);
        if (range == null) {
            return false;
        }
        long from = partition < range[0].length ? range[0][partition] : 0;
        long[] ends = range[1];
        return offset >= from
                && (ends == null || partition < ends.length && offset < ends[partition]);
    }

    /** Tell whether this version counts, once it does, for all that a log topic will have. */
    boolean isLast(String logTopic) {
        long[][] range = ranges.get(logTopic);
        return range != null && range[1] == null;
    }

    /**
     * Return by partition these offsets, or the later ones from which on this version changes no
     * more.
     */
    long[] later(long[] offsets, String logTopic) {
        long[][] range = ranges.get(logTopic);
        if (range == null) {
            return offsets;
        }
        long[] own = range[1] == null ? range[0] : range[1];
        long[] later = Arrays.copyOf(offsets, Math.max(offsets.length, own.length));
        for (int i = 0; i < own.length; i++) {
            later[i] = Math.max(later[i], own[i]);
        }
        return later;
    }
}
