package mqlake.streaming;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.zip.CRC32;

/**
 * Which gateways have subscribers for a topic: one trie of topic filters per tenant.
 *
 * The twin of mqlake/matching.py and mqlake/sharing.py; they pass the same generated cases. One
 * thread writes, any number read without a lock, as TopicTrie has it. A reader that starts after
 * apply() returned sees its effect, which is all that a barrier needs.
 *
 * Written for Janino: casts where generics would infer, no lambdas.
 */
public final class RouteTable {
    private static final String SHARE_PREFIX = "$share/";
    /**
     * The filter of a gateway that wants every retain-flagged message of a partition, whose number
     * follows; no client's.
     */
    private static final String RETAINED = "\0retained/";
    private static final String[] NONE = new String[0];

    // The strategies of share groups; their names are those of mqlake/sharing.py.
    public static final int ROUND_ROBIN = 0;
    public static final int RANDOM = 1;
    public static final int STICKY = 2;
    public static final int HASH_TOPIC = 3;
    public static final int HASH_CLIENT_ID = 4;
    private static final String[] STRATEGIES =
            new String[] {"round_robin", "random", "sticky", "hash_topic", "hash_client_id"};
    /** 2^64 divided by the golden ratio: multiples of it spread evenly, whatever their distance. */
    private static final long GOLDEN = 0x9e3779b97f4a7c15L;

    /** What one filter leads to; immutable. */
    private static final class Targets {
        /** Gateways with subscribers that are not shared; sorted. */
        final String[] gateways;
        final Group[] groups;

        Targets(String[] gateways, Group[] groups) {
            this.gateways = gateways;
            this.groups = groups;
        }
    }

    /** What the route of a share group says of its gateway; immutable. */
    private static final class Weight {
        final int members;
        final int strategy;
        /** When the gateway joined the group: the strategy of the first one counts for all. */
        final long since;

        Weight(int members, int strategy, long since) {
            this.members = members;
            this.strategy = strategy;
            this.since = since;
        }
    }

    /** One share group: `$share/name/filter` over all its gateways; immutable. */
    private static final class Group {
        final String sharedFilter;
        /** Sorted, so that the choice does not depend on the order in which routes came. */
        final String[] gateways;
        final Weight[] weights;
        final long total;
        /** The gateway that joined first; -1 without any. */
        final int first;
        final long salt;

        Group(String sharedFilter, String[] gateways, Weight[] weights) {
            this.sharedFilter = sharedFilter;
            this.gateways = gateways;
            this.weights = weights;
            long sum = 0;
            int earliest = -1;
            for (int i = 0; i < weights.length; i++) {
                sum += weights[i].members;
                if (earliest < 0 || weights[i].since < weights[earliest].since) {
                    earliest = i;
                }
            }
            this.total = sum;
            this.first = earliest;
            this.salt = crc32(sharedFilter) << 32;
        }

        /** The gateway for a message: in proportion to its members, always the same for one message. */
        String choose(String topicName, String publisher, int partition, long offset) {
            int strategy = weights[first].strategy;
            long pick;
            if (strategy == STICKY) {
                return gateways[first];
            } else if (strategy == ROUND_ROBIN) {
                long turn = offset * GOLDEN + mix((partition + 1) ^ salt);
                pick = ((turn >>> 33) * total) >>> 31;
            } else if (strategy == RANDOM) {
                pick = Long.remainderUnsigned(mix(mix(partition + 1) ^ offset ^ salt), total);
            } else {
                String value = strategy == HASH_TOPIC ? topicName : publisher;
                pick = Long.remainderUnsigned(mix(crc32(value) ^ salt), total);
            }
            for (int i = 0; i < weights.length; i++) {
                pick -= weights[i].members;
                if (pick < 0) {
                    return gateways[i];
                }
            }
            throw new IllegalStateException("share group without members");
        }
    }

    /** How far the route records of a run of a gateway are applied; immutable. */
    private static final class Run {
        final String incarnation;
        final long number;

        Run(String incarnation, long number) {
            this.incarnation = incarnation;
            this.number = number;
        }
    }

    /** Gateway to its last run: an earlier one sends no barriers any more. */
    private final ConcurrentHashMap<String, Run> runs = new ConcurrentHashMap<String, Run>();
    private final ConcurrentHashMap<String, TopicTrie> tenants =
            new ConcurrentHashMap<String, TopicTrie>();
    /** Partition to the gateways that want its retain-flagged messages, sorted; never an empty array. */
    private final ConcurrentHashMap<Integer, String[]> retained =
            new ConcurrentHashMap<Integer, String[]>();

    /**
     * Set how many subscribers a gateway has for a filter (a shared one with its `$share/name/`).
     *
     * @param members 0 takes the route out and prunes the levels it leaves empty.
     * @param strategy Of a shared one: how the group wants its messages spread.
     * @param since Of a shared one: when the gateway joined the group.
     */
    public void apply(
            String gateway,
            String tenant,
            String topicFilter,
            int members,
            int strategy,
            long since) {
        if (topicFilter.startsWith(RETAINED)) {
            applyRetained(gateway, topicFilter.substring(RETAINED.length()), members);
            return;
        }
        String sharedFilter = null;
        String plain = topicFilter;
        if (topicFilter.startsWith(SHARE_PREFIX)) {
            int end = topicFilter.indexOf('/', SHARE_PREFIX.length());
            if (end >= 0) {
                sharedFilter = topicFilter;
                plain = topicFilter.substring(end + 1);
            }
        }
        TopicTrie trie = (TopicTrie) tenants.get(tenant);
        if (trie == null) {
            if (members == 0) {
                return;
            }
            trie = new TopicTrie();
            tenants.put(tenant, trie);
        }
        Weight weight = new Weight(members, strategy, since);
        trie.put(plain, replace((Targets) trie.get(plain), gateway, sharedFilter, weight));
        if (trie.isEmpty()) {
            tenants.remove(tenant, trie);
        }
    }

    /** Note that a gateway's own record is applied; called after it was. */
    public void applyNumber(String gateway, String incarnation, long number) {
        if (number > applied(gateway, incarnation)) {
            runs.put(gateway, new Run(incarnation, number));
        }
    }

    /** Return up to which of its records a run of a gateway is applied; 0: none, or not its last run. */
    public long applied(String gateway, String incarnation) {
        Run run = (Run) runs.get(gateway);
        return run != null && run.incarnation.equals(incarnation) ? run.number : 0;
    }

    private void applyRetained(String gateway, String number, int members) {
        Integer partition;
        try {
            partition = Integer.valueOf(number);
        } catch (NumberFormatException error) {
            return; // not ours: somebody else wrote to the topic
        }
        String[] old = (String[]) retained.get(partition);
        if (old == null) {
            old = NONE;
        }
        String[] gateways = members > 0 ? with(old, gateway) : without(old, gateway);
        if (gateways.length == 0) {
            retained.remove(partition);
        } else {
            retained.put(partition, gateways);
        }
    }

    /**
     * Find the gateways that get a message, each once.
     *
     * @param isRetained True for a message flagged RETAIN: those that want all of its partition
     *     get it too.
     * @param publisher Client identifier: with the next two it decides in each share group.
     * @param partition Where the message is in the log.
     * @param offset Likewise.
     * @return Gateway to the shared filters it was chosen for (none for plain subscriptions, so the
     *     value may be null); null when nobody subscribed.
     */
    public LinkedHashMap<String, ArrayList<String>> match(
            String tenant,
            String topicName,
            boolean isRetained,
            String publisher,
            int partition,
            long offset) {
        LinkedHashMap<String, ArrayList<String>> found =
                matchFilters(tenant, topicName, publisher, partition, offset);
        String[] gateways = isRetained ? (String[]) retained.get(Integer.valueOf(partition)) : null;
        if (gateways == null) {
            return found;
        }
        if (found == null) {
            found = new LinkedHashMap<String, ArrayList<String>>();
        }
        addAll(found, gateways);
        return found;
    }

    private LinkedHashMap<String, ArrayList<String>> matchFilters(
            String tenant, String topicName, String publisher, int partition, long offset) {
        TopicTrie trie = (TopicTrie) tenants.get(tenant);
        if (trie == null) {
            return null;
        }
        ArrayList<Object> matching = new ArrayList<Object>();
        trie.match(topicName, matching);
        if (matching.isEmpty()) {
            return null;
        }
        LinkedHashMap<String, ArrayList<String>> found =
                new LinkedHashMap<String, ArrayList<String>>();
        for (int i = 0; i < matching.size(); i++) {
            collect((Targets) matching.get(i), topicName, publisher, partition, offset, found);
        }
        return found;
    }

    /** True when no filter is held, that is, when everything was pruned. */
    public boolean isEmpty() {
        return tenants.isEmpty() && retained.isEmpty();
    }

    private static void collect(
            Targets targets,
            String topicName,
            String publisher,
            int partition,
            long offset,
            LinkedHashMap<String, ArrayList<String>> found) {
        addAll(found, targets.gateways);
        for (int i = 0; i < targets.groups.length; i++) {
            Group group = targets.groups[i];
            String gateway = group.choose(topicName, publisher, partition, offset);
            ArrayList<String> sharedFilters = (ArrayList<String>) found.get(gateway);
            if (sharedFilters == null) {
                sharedFilters = new ArrayList<String>(2);
                found.put(gateway, sharedFilters);
            }
            sharedFilters.add(group.sharedFilter);
        }
    }

    private static void addAll(
            LinkedHashMap<String, ArrayList<String>> found, String[] gateways) {
        for (int i = 0; i < gateways.length; i++) {
            if (!found.containsKey(gateways[i])) {
                found.put(gateways[i], null);
            }
        }
    }

    private static Targets replace(
            Targets old, String gateway, String sharedFilter, Weight weight) {
        String[] gateways = old == null ? NONE : old.gateways;
        Group[] groups = old == null ? new Group[0] : old.groups;
        if (sharedFilter == null) {
            gateways =
                    weight.members > 0 ? with(gateways, gateway) : without(gateways, gateway);
        } else {
            int at = 0;
            while (at < groups.length && !groups[at].sharedFilter.equals(sharedFilter)) {
                at++;
            }
            Group group = at < groups.length ? groups[at] : new Group(sharedFilter, NONE, new Weight[0]);
            Group changed = replace(group, gateway, weight);
            ArrayList<Group> kept = new ArrayList<Group>(Arrays.asList(groups));
            if (at < groups.length) {
                kept.remove(at);
            }
            if (changed.total > 0) {
                kept.add(changed);
            }
            groups = (Group[]) kept.toArray(new Group[kept.size()]);
        }
        return gateways.length == 0 && groups.length == 0 ? null : new Targets(gateways, groups);
    }

    private static Group replace(Group old, String gateway, Weight weight) {
        String[] gateways =
                weight.members > 0 ? with(old.gateways, gateway) : without(old.gateways, gateway);
        Weight[] weights = new Weight[gateways.length];
        for (int i = 0; i < gateways.length; i++) {
            int before = Arrays.binarySearch(old.gateways, gateways[i]);
            weights[i] = gateways[i].equals(gateway) ? weight : old.weights[before];
        }
        return new Group(old.sharedFilter, gateways, weights);
    }

    private static String[] with(String[] sorted, String added) {
        int at = Arrays.binarySearch(sorted, added);
        if (at >= 0) {
            return sorted;
        }
        String[] longer = (String[]) Arrays.copyOf(sorted, sorted.length + 1);
        longer[sorted.length] = added;
        Arrays.sort(longer);
        return longer;
    }

    private static String[] without(String[] sorted, String removed) {
        int at = Arrays.binarySearch(sorted, removed);
        if (at < 0) {
            return sorted;
        }
        String[] shorter = (String[]) Arrays.copyOf(sorted, sorted.length - 1);
        System.arraycopy(sorted, at + 1, shorter, at, sorted.length - at - 1);
        return shorter;
    }

    /** The number of a strategy; -1 when there is none of the name. */
    public static int strategy(String name) {
        for (int i = 0; i < STRATEGIES.length; i++) {
            if (STRATEGIES[i].equals(name)) {
                return i;
            }
        }
        return -1;
    }

    static long crc32(String text) {
        CRC32 crc = new CRC32();
        crc.update(text.getBytes(StandardCharsets.UTF_8));
        return crc.getValue();
    }

    /** The finalizer of SplitMix64: neighbouring seeds give unrelated results. */
    static long mix(long value) {
        value = (value ^ (value >>> 30)) * 0xbf58476d1ce4e5b9L;
        value = (value ^ (value >>> 27)) * 0x94d049bb133111ebL;
        return value ^ (value >>> 31);
    }
}
