package mqlake.rules;

import mqlake.Vocabulary;
import mqlake.routing.TopicFilters;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.Iterator;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;

/**
 * Which rules are to be evaluated on a record: topic filters, at each the versions that have it.
 *
 * <p>One thread writes, any number read without a lock. What stands at a filter is replaced as a
 * whole, and a version keeps its filters, so a reader finds a version that counts before and after
 * as well as during a change.
 */
public final class RuleTable {
    private static final RuleVersion[] NONE = new RuleVersion[0];

    /** By identifier, which is also the order in which they are evaluated. */
    private static final Comparator<RuleVersion> BY_RULE =
            (one, other) -> {
                int order = one.rule.compareTo(other.rule);
                return order != 0 ? order : one.version - other.version;
            };

    /** Whether stateless versions are evaluated by this table, not only looked up. */
    private final boolean isEvaluated;

    /** At each filter its RuleSet. */
    private final TopicFilters<RuleSet> filters = new TopicFilters<>();

    /** Tenant to how many filters it has; none without. */
    private final ConcurrentHashMap<String, Integer> tenants = new ConcurrentHashMap<>();

    /** `<tenant>/<rule>` to its versions. */
    private final ConcurrentHashMap<String, RuleVersion[]> rules = new ConcurrentHashMap<>();

    /** `<tenant>/<rule>` to its stateful versions, which are evaluated elsewhere. */
    private final ConcurrentHashMap<String, RuleVersion[]> runs = new ConcurrentHashMap<>();

    /** Those that may have counts to give. */
    private final ConcurrentLinkedQueue<RuleIndex> indexes = new ConcurrentLinkedQueue<>();

    /** What came of changes up to this one is in the table. */
    volatile long decided = -1;

    /** One by which rules are evaluated. */
    public RuleTable() {
        this(true);
    }

    RuleTable(boolean isEvaluated) {
        this.isEvaluated = isEvaluated;
    }

    /**
     * Apply a record of mqlake.rules; those that do not concern the engine do nothing.
     *
     * @throws IOException It is not JSON.
     * @throws IllegalArgumentException It is of another form.
     */
    public void apply(String key, byte[] value) throws IOException {
        if (key.equals(Vocabulary.DECIDED_KEY)) {
            decided = Activation.decided(value);
        } else if (key.startsWith(Vocabulary.ACTIVATION_PREFIX)) {
            String[] parts = key.split("/");
            if (parts.length != 3) {
                throw new IllegalArgumentException("not the key of an activation: " + key);
            }
            String name = parts[1] + "/" + parts[2];
            RuleVersion[] found = Activation.runs(parts[1], parts[2], value);
            if (found.length == 0) {
                runs.remove(name);
            } else {
                runs.put(name, found);
            }
            replace(
                    parts[1],
                    parts[2],
                    Activation.versions(parts[1], parts[2], value, isEvaluated));
            if (value == null) {
                RuleCounters.forget(name);
            }
        } else if (key.startsWith(Vocabulary.DEFINITION_PREFIX)) {
            if (value == null) {
                RuleCounters.delete(key.substring(Vocabulary.DEFINITION_PREFIX.length()));
            } else {
                RuleCounters.define(key.substring(Vocabulary.DEFINITION_PREFIX.length()));
            }
        }
    }

    /** Replace the versions of a rule; none takes it out. */
    void replace(String tenant, String rule, RuleVersion[] versions) {
        String name = tenant + "/" + rule;
        RuleVersion[] old = rules.get(name);
        if (old == null) {
            old = NONE;
        }
        for (int i = 0; i < versions.length; i++) {
            for (int j = 0; j < versions[i].filters.length; j++) {
                set(tenant, versions[i].filters[j], rule, versions);
            }
        }
        for (int i = 0; i < old.length; i++) {
            for (int j = 0; j < old[i].filters.length; j++) {
                set(tenant, old[i].filters[j], rule, versions);
            }
        }
        if (versions.length == 0) {
            rules.remove(name);
        } else {
            rules.put(name, versions);
        }
    }

    /** Set what a rule has at one filter to those of its versions that name it. */
    private void set(String tenant, String filter, String rule, RuleVersion[] versions) {
        byte[] key = TopicFilters.key(tenant, filter);
        RuleSet before = filters.get(key);
        ArrayList<RuleVersion> after = new ArrayList<>();
        for (int i = 0; before != null && i < before.versions.length; i++) {
            if (!before.versions[i].rule.equals(rule)) {
                after.add(before.versions[i]);
            }
        }
        for (int i = 0; i < versions.length; i++) {
            if (Arrays.asList(versions[i].filters).contains(filter)) {
                after.add(versions[i]);
            }
        }
        RuleVersion[] sorted = after.toArray(new RuleVersion[after.size()]);
        Arrays.sort(sorted, BY_RULE);
        if (before == null && sorted.length > 0) {
            count(tenant, 1);
        }
        filters.put(key, sorted.length == 0 ? null : new RuleSet(sorted));
        if (before != null) {
            before.isReplaced = true;
            if (sorted.length == 0) {
                count(tenant, -1);
            }
        }
    }

    private void count(String tenant, int more) {
        Integer before = tenants.get(tenant);
        int after = (before == null ? 0 : before.intValue()) + more;
        if (after == 0) {
            tenants.remove(tenant);
        } else {
            tenants.put(tenant, Integer.valueOf(after));
        }
    }

    /**
     * Tell whether any rule, at whatever position, has a filter that matches `<tenant>/<topic
     * name>`.
     */
    boolean matches(byte[] topic) {
        ArrayList<RuleSet> found = new ArrayList<>(4);
        filters.match(new TopicFilters.Topic(topic), found);
        return !found.isEmpty();
    }

    /** Return the stateful version that a change put in force; null when it is forgotten. */
    public RuleVersion run(String name, long change) {
        RuleVersion[] known = runs.get(name);
        for (int i = 0; known != null && i < known.length; i++) {
            if (known[i].change == change) {
                return known[i];
            }
        }
        return null;
    }

    /** Tell whether any rule, stateful or not, reads an event by its topic. */
    public boolean isRead(String tenant, String eventTopic) {
        if (matches(TopicFilters.key(tenant, eventTopic))) {
            return true;
        }
        Iterator<RuleVersion[]> each = runs.values().iterator();
        while (each.hasNext()) {
            RuleVersion[] versions = each.next();
            for (int i = 0; i < versions.length; i++) {
                if (versions[i].tenant.equals(tenant)
                        && Arrays.asList(versions[i].filters).contains(eventTopic)) {
                    return true;
                }
            }
        }
        return false;
    }

    boolean hasRules(String tenant) {
        return tenants.containsKey(tenant);
    }

    /**
     * Find the versions that are to be evaluated on the record of a lane: of those that count for
     * it, each rule once, in order, without those of which it is known already that they have no
     * result.
     */
    void match(String tenant, String topicName, String logTopic, Lane lane) {
        ArrayList<RuleSet> found = new ArrayList<>(4);
        filters.match(new TopicFilters.Topic(TopicFilters.key(tenant, topicName)), found);
        MessageRow row = lane.row;
        // Of what came through rules each is to say whether it goes round in a loop; and a rule
        // that may
        // be found at several filters would be asked at each.
        boolean isIndexed = row.chain == null || row.chain.length == 0;
        for (int i = 0; i < found.size() && found.size() > 1; i++) {
            isIndexed = isIndexed && found.get(i).isAlone;
        }
        ArrayList<RuleVersion> candidates = lane.candidates;
        for (int i = 0; i < found.size(); i++) {
            RuleSet set = found.get(i);
            RuleIndex index =
                    isIndexed ? set.index(logTopic, row.partition, row.offset, indexes) : null;
            if (index == null) {
                set.addCounting(logTopic, row.partition, row.offset, candidates);
            } else {
                index.addCandidates(row, candidates);
            }
        }
        if (candidates.size() > 1) {
            candidates.sort(BY_RULE);
        }
        // Several filters of one rule may match; and during a change an old object of a version may
        // be found at one filter and its successor at another.
        int kept = 0;
        for (int i = 0; i < candidates.size(); i++) {
            RuleVersion candidate = candidates.get(i);
            // All versions of a rule share their counters.
            if (kept == 0 || candidates.get(kept - 1).counters != candidate.counters) {
                candidates.set(kept++, candidate);
            }
        }
        for (int i = candidates.size() - 1; i >= kept; i--) {
            candidates.remove(i);
        }
    }

    /** Give each rule what was counted for all rules at a filter together. */
    public void giveCounts() {
        Iterator<RuleIndex> each = indexes.iterator();
        while (each.hasNext()) {
            if (!each.next().giveCounts()) {
                each.remove();
            }
        }
    }

    public boolean isEmpty() {
        return filters.isEmpty() && rules.isEmpty() && runs.isEmpty();
    }
}
