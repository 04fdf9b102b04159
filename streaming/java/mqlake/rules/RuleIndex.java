package mqlake.rules;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.concurrent.atomic.LongAdder;

/**
 * Finds those of the rules at a topic filter that may give something for a record.
 *
 * <p>Their guards form a tree: at a node are the columns that some of the rules ask for next, and
 * by the value that a column has, the node to go on at. So hundreds of rules that compare one
 * column with a value each cost a look into a map, not an evaluation each. A rule's guards stay in
 * their order, so that what fails still fails.
 *
 * <p>It holds for records from certain offsets of one log topic on, after all changes that the
 * versions at the filter know of.
 */
final class RuleIndex {
    private static final Guard[] NO_GUARDS = new Guard[0];

    private final RuleSet set;
    private final String logTopic;
    private final RuleVersion[] versions;

    /** By partition; one that is new counts from 0. */
    private final long[] from;

    private final Node root;

    // What counts for all of the rules, until each is given its part of it.
    private final LongAdder asked = new LongAdder();
    private final ProcessorTime asking = new ProcessorTime();

    /** By rule: how often it was found. */
    private final LongAdder[] found;

    // What they were given so far.
    private final long[] given;
    private long givenNs;
    private boolean isLastTime;

    RuleIndex(RuleSet set, String logTopic) {
        this.set = set;
        this.logTopic = logTopic;
        long[] offsets = new long[0];
        ArrayList<RuleVersion> last = new ArrayList<>();
        for (int i = 0; i < set.versions.length; i++) {
            RuleVersion version = set.versions[i];
            offsets = version.later(offsets, logTopic);
            if (version.isLast(logTopic)) {
                last.add(version);
            }
        }
        this.from = offsets;
        this.versions = last.toArray(new RuleVersion[last.size()]);
        this.given = new long[versions.length];
        this.found = new LongAdder[versions.length];
        ArrayList<Integer> all = new ArrayList<>();
        for (int i = 0; i < versions.length; i++) {
            found[i] = new LongAdder();
            all.add(Integer.valueOf(i));
        }
        this.root = node(all, 0);
    }

    /** Tell whether it holds for a record. */
    boolean holds(String recordLogTopic, int partition, long offset) {
        return logTopic.equals(recordLogTopic)
                && (partition >= from.length || offset >= from[partition]);
    }

    /** Add the rules that are to be evaluated; the others have no result. */
    void addCandidates(MessageRow row, ArrayList<RuleVersion> candidates) {
        asked.increment(); // before any is found, see giveCounts()
        long begin = asking.begin(row.offset);
        add(root, row, candidates);
        asking.end(row.offset, begin);
        if (row.takesLong()) {
            asking.watch();
        }
    }

    private void add(Node node, MessageRow row, ArrayList<RuleVersion> candidates) {
        addAll(node.here, candidates);
        for (int i = 0; i < node.columns.length; i++) {
            Column column = node.columns[i];
            Object value;
            try {
                value = row.genericGet(column.ordinal);
            } catch (Exception error) { // each is to fail by itself
                addAll(column.rules, candidates);
                continue;
            } catch (StackOverflowError error) {
                addAll(column.rules, candidates);
                continue;
            } catch (LinkageError error) {
                addAll(column.rules, candidates);
                continue;
            }
            Node next = value == null ? null : column.nodes.get(value);
            if (next != null) {
                add(next, row, candidates);
            }
        }
    }

    private void addAll(int[] rules, ArrayList<RuleVersion> candidates) {
        for (int i = 0; i < rules.length; i++) {
            found[rules[i]].increment();
            candidates.add(versions[rules[i]]);
        }
    }

    /**
     * Give each rule what was counted since the last time: all of them were asked, those that were
     * not found had no result.
     *
     * @return Whether there may be more to come.
     */
    synchronized boolean giveCounts() {
        // A record may still be on its way through what has been replaced, for less than a round.
        boolean isOver = isLastTime;
        isLastTime = set.isReplaced;
        long[] foundBefore = new long[versions.length];
        for (int i = 0; i < versions.length; i++) {
            foundBefore[i] = found[i].sum();
        }
        long askedNow = asked.sum();
        long ns = versions.length == 0 ? 0 : asking.sum() / versions.length;
        for (int i = 0; i < versions.length; i++) {
            RuleCounters counters = versions[i].counters;
            long missed = askedNow - foundBefore[i];
            if (missed > given[i]) {
                counters.matched.add(missed - given[i]);
                counters.noResult.add(missed - given[i]);
                given[i] = missed;
            }
            counters.evaluation.add(ns - givenNs);
        }
        givenNs = ns;
        return !isOver;
    }

    private Node node(ArrayList<Integer> rules, int depth) {
        ArrayList<Integer> here = new ArrayList<>();
        ArrayList<ArrayList<Integer>> groups = new ArrayList<>();
        HashMap<Integer, ArrayList<Integer>> byColumn = new HashMap<>();
        for (int i = 0; i < rules.size(); i++) {
            Integer rule = rules.get(i);
            Guard[] guards = guards(rule);
            if (guards.length == depth) {
                here.add(rule);
                continue;
            }
            Integer ordinal = guards[depth].ordinal();
            ArrayList<Integer> group = byColumn.get(ordinal);
            if (group == null) {
                group = new ArrayList<>();
                byColumn.put(ordinal, group);
                groups.add(group);
            }
            group.add(rule);
        }
        Column[] columns = new Column[groups.size()];
        for (int i = 0; i < columns.length; i++) {
            columns[i] = column(groups.get(i), depth);
        }
        return new Node(places(here), columns);
    }

    /** Return the column that all of these rules ask for at a depth. */
    private Column column(ArrayList<Integer> rules, int depth) {
        HashMap<Object, ArrayList<Integer>> byValue = new HashMap<>();
        for (int i = 0; i < rules.size(); i++) {
            Object wanted = guards(rules.get(i))[depth].wanted();
            ArrayList<Integer> group = byValue.get(wanted);
            if (group == null) {
                group = new ArrayList<>();
                byValue.put(wanted, group);
            }
            group.add(rules.get(i));
        }
        HashMap<Object, Node> nodes = new HashMap<>();
        Object[] values = byValue.keySet().toArray();
        for (int i = 0; i < values.length; i++) {
            nodes.put(values[i], node(byValue.get(values[i]), depth + 1));
        }
        int ordinal = guards(rules.get(0))[depth].ordinal();
        return new Column(ordinal, nodes, places(rules));
    }

    private Guard[] guards(Integer rule) {
        CompiledRule code = versions[rule.intValue()].code;
        return code == null ? NO_GUARDS : code.guards;
    }

    private static int[] places(ArrayList<Integer> rules) {
        int[] places = new int[rules.size()];
        for (int i = 0; i < places.length; i++) {
            places[i] = rules.get(i).intValue();
        }
        return places;
    }

    /**
     * What rules that agree in their first guards ask for next; rules by their place in `versions`.
     */
    private static final class Node {
        /** They ask for nothing more. */
        final int[] here;

        final Column[] columns;

        Node(int[] here, Column[] columns) {
            this.here = here;
            this.columns = columns;
        }
    }

    private static final class Column {
        final int ordinal;

        /** By value. */
        final HashMap<Object, Node> nodes;

        final int[] rules;

        Column(int ordinal, HashMap<Object, Node> nodes, int[] rules) {
            this.ordinal = ordinal;
            this.nodes = nodes;
            this.rules = rules;
        }
    }
}
