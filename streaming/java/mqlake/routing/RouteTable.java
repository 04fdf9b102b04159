package mqlake.routing;

import mqlake.Vocabulary;

import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListMap;

/**
 * Which gateways have subscribers for a topic.
 *
 * <p>The twin of mqlake/topics/matching.py; they pass the same generated cases. One thread writes,
 * any number read without a lock, as TopicFilters has it. A reader that starts after apply()
 * returned sees its effect, which is all that a barrier needs. A topic that was asked for not long
 * ago is looked up in a cache, of which a change takes out what its filter may match.
 *
 * <p>A message goes to one gateway of a share group, so the group is as it was at the message's
 * place: as the routes say that are in force there (see {@link RoutesInForce}), whatever the table
 * has heard since.
 */
public final class RouteTable {
    /** In place of a shard, of a message that is not flagged RETAIN. */
    public static final int NOT_RETAINED = -1;

    /** Of all routes that the table has, the newest count. */
    public static final long NEWEST = Long.MAX_VALUE;

    /** So many routes of share groups are known by their place. */
    private static final int MOST_PLACES = 100000;

    private static final String[] NONE = new String[0];
    private static final ShareGroup[] NO_GROUPS = new ShareGroup[0];
    private static final Targets NOWHERE = new Targets(NONE, NO_GROUPS);

    /** So many combinations of gateways are kept to be shared between filters. */
    private static final int COMBINATIONS = 4096;

    /** Topics that lead to more are not kept. */
    private static final int MOST_KEPT = 64;

    private static final List<String> STRATEGIES = List.of(Vocabulary.STRATEGIES.split(","));

    /** Who gets a message; immutable. */
    public static final class Recipients {
        /** Each once. */
        final String[] gateways;

        /**
         * By gateway the shared filters that it was chosen for, UTF-8, each behind a line feed;
         * null where it was for none, and instead of all when no gateway was for any.
         */
        final byte[][] sharedFilters;

        Recipients(String[] gateways, byte[][] sharedFilters) {
            this.gateways = gateways;
            this.sharedFilters = sharedFilters;
        }

        public String[] gateways() {
            return gateways;
        }

        /** Return the lines of a gateway; null when it was chosen for no shared filter. */
        public byte[] sharedFilters(int gateway) {
            return sharedFilters == null ? null : sharedFilters[gateway];
        }
    }

    /** What a filter, or a topic, leads to; immutable. */
    private static final class Targets {
        /** Gateways with subscribers that are not shared; sorted, of a filter. */
        final String[] gateways;

        final ShareGroup[] groups;

        /** The gateways, as every message gets them that no group has a part in. */
        final Recipients plain;

        Targets(String[] gateways, ShareGroup[] groups) {
            this.gateways = gateways;
            this.groups = groups;
            this.plain = new Recipients(gateways, null);
        }
    }

    /** How far the route records of a run of a gateway are applied; immutable. */
    private static final class Run {
        final String incarnation;

        /** Where it began, in an order of all runs of the gateway; -1 when it does not say. */
        final long since;

        final long number;

        /** Number of a share group's record to its offset. */
        final ConcurrentSkipListMap<Long, Long> shared;

        Run(String incarnation, long since, long number, ConcurrentSkipListMap<Long, Long> shared) {
            this.incarnation = incarnation;
            this.since = since;
            this.number = number;
            this.shared = shared;
        }
    }

    /** A share group without gateways, which is kept for a time. */
    private static final class Emptied {
        final byte[] key;
        final byte[] sharedFilter;

        Emptied(byte[] key, byte[] sharedFilter) {
            this.key = key;
            this.sharedFilter = sharedFilter;
        }
    }

    /** Gateway to its last run: an earlier one sends no barriers any more. */
    private final ConcurrentHashMap<String, Run> runs = new ConcurrentHashMap<>();

    /** Offsets of the routes of share groups, as keys. */
    private final ConcurrentSkipListMap<Long, Boolean> sharedRoutes = new ConcurrentSkipListMap<>();

    /** The writer's own, the longest empty first. */
    private final ArrayDeque<Emptied> emptied = new ArrayDeque<>();

    private final TopicFilters<Targets> filters = new TopicFilters<>();
    private final TopicCache<Targets> cache = new TopicCache<>();

    /**
     * The writer's own: what has no groups, by its gateways. Most filters lead to few combinations.
     */
    private final HashMap<List<String>, Targets> combinations = new HashMap<>();

    /**
     * Shard to the gateways that want its retain-flagged messages, sorted; never an empty array.
     */
    private final ConcurrentHashMap<Integer, String[]> retained = new ConcurrentHashMap<>();

    /**
     * Set how many subscribers a gateway has for a filter (a shared one with its `$share/name/`).
     *
     * @param members 0 takes the route out and prunes the levels it leaves empty.
     * @param strategy Of a shared one: how the group wants its messages spread.
     * @param since Of a shared one: when the gateway joined the group.
     * @param routesOffset Where the route is in its log topic.
     * @param timestampMs When the log got it, milliseconds UTC.
     */
    public void apply(
            String gateway,
            String tenant,
            String topicFilter,
            int members,
            int strategy,
            long since,
            long routesOffset,
            long timestampMs) {
        forgetEmptied(timestampMs);
        // A gateway wants every retain-flagged message of a shard: its number follows.
        if (topicFilter.startsWith(Vocabulary.RETAINED_PREFIX)) {
            applyRetained(
                    gateway, topicFilter.substring(Vocabulary.RETAINED_PREFIX.length()), members);
            return;
        }
        byte[] sharedFilter = null;
        String plain = topicFilter;
        if (topicFilter.startsWith(Vocabulary.SHARE_PREFIX)) {
            if (topicFilter.indexOf('\n') >= 0) {
                return; // of an older release: in a delivery it would name several groups
            }
            int end = topicFilter.indexOf('/', Vocabulary.SHARE_PREFIX.length());
            if (end >= 0) {
                sharedFilter = topicFilter.getBytes(StandardCharsets.UTF_8);
                plain = topicFilter.substring(end + 1);
            }
        }
        byte[] key = TopicFilters.key(tenant, plain);
        Targets old = filters.get(key);
        ShareGroup.Weight weight = new ShareGroup.Weight(members, strategy, since);
        Targets changed =
                sharedFilter == null
                        ? replace(old, gateway, members)
                        : replace(old, gateway, sharedFilter, weight, routesOffset, timestampMs);
        if (changed != old) {
            filters.put(key, changed);
        }
        if (sharedFilter != null) {
            sharedRoutes.put(Long.valueOf(routesOffset), Boolean.TRUE);
            if (sharedRoutes.size() > MOST_PLACES) {
                sharedRoutes.pollFirstEntry();
            }
            if (members == 0) {
                emptied.add(new Emptied(key, sharedFilter));
            }
        }
    }

    /** Tell whether a filter is of a share group. */
    static boolean isShared(String topicFilter) {
        return topicFilter.startsWith(Vocabulary.SHARE_PREFIX);
    }

    /** Return the last route of a share group up to an offset; -1 without any. */
    public long sharedRoute(long routesOffset) {
        Long found = sharedRoutes.floorKey(Long.valueOf(routesOffset));
        return found == null ? -1 : found.longValue();
    }

    /**
     * Return the last route of a share group up to a number of a run of a gateway; -1 without any.
     */
    public long sharedRoute(String gateway, String incarnation, long number) {
        Run run = runs.get(gateway);
        if (run == null || !run.incarnation.equals(incarnation)) {
            return -1;
        }
        Map.Entry<Long, Long> found = run.shared.floorEntry(Long.valueOf(number));
        return found == null ? -1 : found.getValue().longValue();
    }

    /** Take out groups that have had no gateway for a while. */
    private void forgetEmptied(long nowMs) {
        while (!emptied.isEmpty()) {
            Emptied oldest = emptied.peek();
            Targets old = filters.get(oldest.key);
            int at = old == null ? -1 : indexOf(old.groups, oldest.sharedFilter);
            if (at >= 0 && old.groups[at].total == 0) {
                if (!old.groups[at].isOver(nowMs)) {
                    return;
                }
                ArrayList<ShareGroup> kept = new ArrayList<>(Arrays.asList(old.groups));
                kept.remove(at);
                filters.put(oldest.key, targets(old.gateways, kept));
            }
            emptied.remove();
        }
    }

    /**
     * Tell whether a record of a run of a gateway has come after those of a later run, by `since`
     * of {@link #applyNumber}: it says nothing of that one.
     */
    public boolean isPast(String gateway, String incarnation, long since) {
        Run run = runs.get(gateway);
        return run != null
                && !run.incarnation.equals(incarnation)
                && since >= 0
                && since < run.since;
    }

    /**
     * Note that a gateway's own record is applied; called after it was.
     *
     * @param since Where its run began: a later run of the gateway has a greater one; -1 when it is
     *     of a release that does not say so.
     */
    public void applyNumber(
            String gateway,
            String incarnation,
            long since,
            long number,
            boolean isShared,
            long routesOffset) {
        Run run = runs.get(gateway);
        ConcurrentSkipListMap<Long, Long> shared =
                run != null && run.incarnation.equals(incarnation)
                        ? run.shared
                        : new ConcurrentSkipListMap<>();
        if (isShared) {
            shared.put(Long.valueOf(number), Long.valueOf(routesOffset));
            if (shared.size() > MOST_PLACES) {
                shared.pollFirstEntry();
            }
        }
        if (number > applied(gateway, incarnation)) {
            runs.put(gateway, new Run(incarnation, since, number, shared));
        }
    }

    /**
     * Return up to which of its records a run of a gateway is applied; 0: none, or not its last
     * run.
     */
    public long applied(String gateway, String incarnation) {
        Run run = runs.get(gateway);
        return run != null && run.incarnation.equals(incarnation) ? run.number : 0;
    }

    private void applyRetained(String gateway, String number, int members) {
        Integer shard;
        try {
            shard = Integer.valueOf(number);
        } catch (NumberFormatException error) {
            return; // not ours: somebody else wrote to the topic
        }
        String[] old = retained.get(shard);
        if (old == null) {
            old = NONE;
        }
        String[] gateways = members > 0 ? with(old, gateway) : without(old, gateway);
        if (gateways.length == 0) {
            retained.remove(shard);
        } else {
            retained.put(shard, gateways);
        }
    }

    /**
     * Find who gets a message.
     *
     * @param topic `<tenant>/<topic name>`, UTF-8; it is kept, so nobody changes it any more.
     * @param shard Of a message flagged RETAIN: those that want all of its shard get it too; {@link
     *     #NOT_RETAINED} of another.
     * @param publisher Client identifier, UTF-8: with the next two it decides in each share group.
     * @param partition Where the message is in the log.
     * @param offset Likewise.
     * @param inForce Of routes of share groups those up to this offset count, or {@link #NEWEST}.
     */
    public Recipients match(
            byte[] topic, int shard, byte[] publisher, int partition, long offset, long inForce) {
        Targets targets = targets(topic);
        Recipients found =
                targets.groups.length == 0
                        ? targets.plain
                        : choose(
                                targets.gateways,
                                targets.groups,
                                topic,
                                publisher,
                                partition,
                                offset,
                                inForce);
        return withRetained(found, shard);
    }

    /**
     * Find who gets a message of another site: whoever is in no share group, see {@link #match}.
     */
    public Recipients matchUnshared(byte[] topic, int shard) {
        Targets targets = targets(topic);
        Recipients found =
                targets.groups.length == 0 ? targets.plain : new Recipients(targets.gateways, null);
        return withRetained(found, shard);
    }

    /**
     * Find who gets a message that another site has given to share groups here, see {@link #match}.
     *
     * @param lines The groups, each shared filter in UTF-8 and before it a line feed.
     */
    public Recipients matchGroups(
            byte[] topic,
            byte[] lines,
            byte[] publisher,
            int partition,
            long offset,
            long inForce) {
        String named = new String(lines, StandardCharsets.UTF_8) + "\n";
        ShareGroup[] all = targets(topic).groups;
        ArrayList<ShareGroup> groups = new ArrayList<>();
        for (int i = 0; i < all.length; i++) {
            String name = new String(all[i].sharedFilter, StandardCharsets.UTF_8);
            if (named.indexOf("\n" + name + "\n") >= 0) {
                groups.add(all[i]);
            }
        }
        return choose(
                NONE, groups.toArray(NO_GROUPS), topic, publisher, partition, offset, inForce);
    }

    private Recipients withRetained(Recipients found, int shard) {
        String[] more = shard == NOT_RETAINED ? null : retained.get(Integer.valueOf(shard));
        return more == null ? found : with(found, more);
    }

    private Targets targets(byte[] topic) {
        int hash = TopicFilters.hash(topic);
        Targets known = cache.get(topic, hash, filters);
        if (known != null) {
            return known;
        }
        TopicFilters.Topic levels = new TopicFilters.Topic(topic, hash);
        // Before the search: a change that comes meanwhile makes what it finds too old to be kept.
        long stamp = filters.stamp(hash, levels.stripes);
        ArrayList<Targets> found = new ArrayList<>(4);
        filters.match(levels, found);
        Targets targets = together(found);
        if (targets.gateways.length + targets.groups.length <= MOST_KEPT) {
            cache.put(levels, stamp, targets);
        }
        return targets;
    }

    /** Return what several filters lead to together. */
    private static Targets together(ArrayList<Targets> found) {
        if (found.isEmpty()) {
            return NOWHERE;
        }
        Targets first = found.get(0);
        if (found.size() == 1) {
            return first;
        }
        LinkedHashSet<String> gateways = new LinkedHashSet<>();
        ArrayList<ShareGroup> groups = new ArrayList<>();
        for (int i = 0; i < found.size(); i++) {
            Targets one = found.get(i);
            gateways.addAll(Arrays.asList(one.gateways));
            groups.addAll(Arrays.asList(one.groups));
        }
        if (gateways.size() == first.gateways.length && groups.size() == first.groups.length) {
            return first;
        }
        return new Targets(gateways.toArray(NONE), groups.toArray(NO_GROUPS));
    }

    private static Recipients choose(
            String[] plain,
            ShareGroup[] groups,
            byte[] topic,
            byte[] publisher,
            int partition,
            long offset,
            long inForce) {
        int most = plain.length + groups.length;
        String[] gateways = Arrays.copyOf(plain, most);
        byte[][] shared = new byte[most][];
        int count = plain.length;
        for (int i = 0; i < groups.length; i++) {
            ShareGroup group = groups[i].at(inForce);
            if (group.total == 0) {
                continue;
            }
            String gateway = group.choose(topic, publisher, partition, offset);
            int at = 0;
            while (at < count && !gateways[at].equals(gateway)) {
                at++;
            }
            if (at == count) {
                gateways[count++] = gateway;
            }
            shared[at] = withLine(shared[at], group.sharedFilter);
        }
        return new Recipients(Arrays.copyOf(gateways, count), shared);
    }

    private static byte[] withLine(byte[] lines, byte[] line) {
        int length = lines == null ? 0 : lines.length;
        byte[] longer =
                lines == null
                        ? new byte[line.length + 1]
                        : Arrays.copyOf(lines, length + line.length + 1);
        longer[length] = '\n';
        System.arraycopy(line, 0, longer, length + 1, line.length);
        return longer;
    }

    private static Recipients with(Recipients found, String[] more) {
        LinkedHashSet<String> gateways = new LinkedHashSet<>(Arrays.asList(found.gateways));
        gateways.addAll(Arrays.asList(more));
        byte[][] shared = found.sharedFilters;
        return new Recipients(
                gateways.toArray(NONE),
                shared == null ? null : (byte[][]) Arrays.copyOf(shared, gateways.size()));
    }

    /** True when no filter is held, that is, when everything was pruned. */
    public boolean isEmpty() {
        return filters.isEmpty() && retained.isEmpty();
    }

    private Targets replace(Targets old, String gateway, int members) {
        String[] gateways = old == null ? NONE : old.gateways;
        ShareGroup[] groups = old == null ? NO_GROUPS : old.groups;
        gateways = members > 0 ? with(gateways, gateway) : without(gateways, gateway);
        return targets(gateways, Arrays.asList(groups));
    }

    private Targets replace(
            Targets old,
            String gateway,
            byte[] sharedFilter,
            ShareGroup.Weight weight,
            long routesOffset,
            long timestampMs) {
        String[] gateways = old == null ? NONE : old.gateways;
        ShareGroup[] groups = old == null ? NO_GROUPS : old.groups;
        int at = indexOf(groups, sharedFilter);
        ShareGroup group = at >= 0 ? groups[at] : new ShareGroup(sharedFilter);
        ShareGroup changed = replace(group, gateway, weight, routesOffset, timestampMs);
        if (changed == group) {
            return old;
        }
        ArrayList<ShareGroup> kept = new ArrayList<>(Arrays.asList(groups));
        if (at >= 0) {
            kept.remove(at);
        }
        kept.add(changed);
        return targets(gateways, kept);
    }

    private Targets targets(String[] gateways, List<ShareGroup> groups) {
        if (!groups.isEmpty()) {
            return new Targets(gateways, groups.toArray(NO_GROUPS));
        }
        return gateways.length == 0 ? null : combination(gateways);
    }

    private static int indexOf(ShareGroup[] groups, byte[] sharedFilter) {
        for (int i = 0; i < groups.length; i++) {
            if (Arrays.equals(groups[i].sharedFilter, sharedFilter)) {
                return i;
            }
        }
        return -1;
    }

    private Targets combination(String[] gateways) {
        List<String> names = Arrays.asList(gateways);
        Targets targets = combinations.get(names);
        if (targets == null) {
            if (combinations.size() >= COMBINATIONS) {
                combinations.clear();
            }
            targets = new Targets(gateways, NO_GROUPS);
            combinations.put(names, targets);
        }
        return targets;
    }

    private static ShareGroup replace(
            ShareGroup old,
            String gateway,
            ShareGroup.Weight weight,
            long routesOffset,
            long timestampMs) {
        if (weight.members == 0 && Arrays.binarySearch(old.gateways, gateway) < 0) {
            return old;
        }
        String[] gateways =
                weight.members > 0 ? with(old.gateways, gateway) : without(old.gateways, gateway);
        ShareGroup.Weight[] weights = new ShareGroup.Weight[gateways.length];
        for (int i = 0; i < gateways.length; i++) {
            int before = Arrays.binarySearch(old.gateways, gateways[i]);
            weights[i] = gateways[i].equals(gateway) ? weight : old.weights[before];
        }
        ShareGroup changed =
                new ShareGroup(old.sharedFilter, gateways, weights, routesOffset, timestampMs, old);
        changed.forget();
        return changed;
    }

    private static String[] with(String[] sorted, String added) {
        int at = Arrays.binarySearch(sorted, added);
        if (at >= 0) {
            return sorted;
        }
        String[] longer = Arrays.copyOf(sorted, sorted.length + 1);
        longer[sorted.length] = added;
        Arrays.sort(longer);
        return longer;
    }

    private static String[] without(String[] sorted, String removed) {
        int at = Arrays.binarySearch(sorted, removed);
        if (at < 0) {
            return sorted;
        }
        String[] shorter = Arrays.copyOf(sorted, sorted.length - 1);
        System.arraycopy(sorted, at + 1, shorter, at, sorted.length - at - 1);
        return shorter;
    }

    /** The number of a strategy; -1 when there is none of the name. */
    public static int strategy(String name) {
        return STRATEGIES.indexOf(name);
    }
}
