package mqlake.rules;

import java.util.ArrayList;
import java.util.Queue;

/** The versions of rules that name one topic filter, in order; replaced as a whole. */
final class RuleSet {
    final RuleVersion[] versions;

    /** No rule of it names another filter. */
    final boolean isAlone;

    /** Another one stands at the filter now. */
    volatile boolean isReplaced;

    /** Made when it is first asked for: rules often change many at a time. */
    private volatile RuleIndex index;

    RuleSet(RuleVersion[] versions) {
        this.versions = versions;
        boolean alone = true;
        for (int i = 0; i < versions.length; i++) {
            alone = alone && versions[i].filters.length == 1;
        }
        this.isAlone = alone;
    }

    /**
     * Return what finds rules for a record; null when that holds for other records only.
     *
     * @param indexes Where a new one is added.
     */
    RuleIndex index(String logTopic, int partition, long offset, Queue<RuleIndex> indexes) {
        RuleIndex known = index;
        if (known == null) {
            synchronized (this) {
                known = index;
                if (known == null) {
                    known = new RuleIndex(this, logTopic);
                    indexes.add(known);
                    index = known;
                }
            }
        }
        return known.holds(logTopic, partition, offset) ? known : null;
    }

    /** Add the versions that count for a record. */
    void addCounting(
            String logTopic, int partition, long offset, ArrayList<RuleVersion> candidates) {
        for (int i = 0; i < versions.length; i++) {
            if (versions[i].counts(logTopic, partition, offset)) {
                candidates.add(versions[i]);
            }
        }
    }
}
