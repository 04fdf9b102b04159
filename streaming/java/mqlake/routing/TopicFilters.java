package mqlake.routing;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.concurrent.atomic.AtomicLongArray;

/**
 * Values at topic filters, found by topic name.
 *
 * <p>Filters and topics are bytes, each with its tenant before it, as in the keys of
 * mqlake.inbound: `<tenant>/<topic name>`. A filter without wildcards is found by the hash of all
 * of it; the others are a tree of levels, in which a level is found by the hash of its bytes and
 * its parent's.
 *
 * <p>One thread writes, any number read without a lock. A reader that starts after put() returned
 * sees its effect.
 *
 * @param <V> Values; none is null.
 */
public final class TopicFilters<V> {
    /** Levels below the tenant by which changes of filters with wildcards are told apart. */
    private static final int PREFIX_LEVELS = 4;

    private static final int STRIPE_BITS = 12;
    private static final int STRIPES = 1 << STRIPE_BITS;
    private static final long GOLDEN = 0x9e3779b97f4a7c15L;

    /** A topic with the hashes by which it is looked up; immutable. */
    public static final class Topic {
        final byte[] bytes;

        /** Of all of it. */
        final int hash;

        /** Which changes may concern it, for stamp(). */
        final long stripes;

        /** Of each of its first levels. */
        private final long[] levels = new long[PREFIX_LEVELS + 1];

        /**
         * Hash the levels of a topic.
         *
         * @param hash Its TopicFilters.hash().
         */
        public Topic(byte[] bytes, int hash) {
            this.bytes = bytes;
            this.hash = hash;
            long path = 0;
            long packed = 0;
            int from = 0;
            for (int i = 0; i < levels.length; i++) {
                if (from <= bytes.length) {
                    int end = end(bytes, from);
                    levels[i] = KeyedHash.of(bytes, from, end);
                    path = path(path, levels[i]);
                    from = end + 1;
                }
                packed = packed << STRIPE_BITS | stripe(path);
            }
            this.stripes = packed;
        }

        public Topic(byte[] bytes) {
            this(bytes, hash(bytes));
        }

        private long level(int depth, int from, int end) {
            return depth < levels.length ? levels[depth] : KeyedHash.of(bytes, from, end);
        }
    }

    /** A filter without wildcards. */
    private static final class Literal<V> extends HashedSet.Entry {
        final byte[] filter;
        volatile V value;

        Literal(int hash, byte[] filter, V value) {
            super(hash);
            this.filter = filter;
            this.value = value;
        }
    }

    /** A level of filters with wildcards. */
    private static final class Level<V> extends HashedSet.Entry {
        final Level<V> parent;

        /** Empty for `+`. */
        final byte[] name;

        volatile Level<V> plus;

        /** Of the filter that ends here. */
        volatile V value;

        /** Of the filter that goes on with `#` and ends. */
        volatile V rest;

        /** The writer's own: levels below that have a name. */
        int named;

        Level(int hash, Level<V> parent, byte[] name) {
            super(hash);
            this.parent = parent;
            this.name = name;
        }

        public boolean isEmpty() {
            return plus == null && value == null && rest == null && named == 0;
        }
    }

    private static final byte[] NO_NAME = new byte[0];

    private final Level<V> root = new Level<>(0, null, NO_NAME);
    private final HashedSet<Literal<V>> literals = new HashedSet<>();
    private final HashedSet<Level<V>> levels = new HashedSet<>();

    /** The writer's own: filters that have a value. */
    private int filters;

    /** How often filters changed, told apart by the hash of what a topic has to begin with. */
    private final AtomicLongArray changes = new AtomicLongArray(STRIPES);

    /** Return a topic name, or a topic filter, with its tenant before it. */
    public static byte[] key(String tenant, String topic) {
        return (tenant + '/' + topic).getBytes(StandardCharsets.UTF_8);
    }

    /** Return the hash of a topic, as Topic and stamp() want it. */
    static int hash(byte[] topic) {
        return (int) KeyedHash.of(topic, 0, topic.length);
    }

    /** True when no filter has a value, and every level was pruned. */
    public boolean isEmpty() {
        return filters == 0 && root.isEmpty();
    }

    /** Return the value at a filter, null when there is none. */
    public V get(byte[] filter) {
        if (!isWild(filter)) {
            Literal<V> literal = literal(filter, hash(filter));
            return literal == null ? null : literal.value;
        }
        Level<V> level = root;
        for (int from = 0; level != null && from <= filter.length; ) {
            int end = end(filter, from);
            if (isRest(filter, from)) {
                return level.rest;
            }
            level =
                    isPlus(filter, from, end)
                            ? level.plus
                            : named(level, filter, from, end, KeyedHash.of(filter, from, end));
            from = end + 1;
        }
        return level == null ? null : level.value;
    }

    /**
     * Set the value at a filter.
     *
     * @param value Null takes it out and prunes the levels that it leaves empty.
     */
    public void put(byte[] filter, V value) {
        int stripe;
        if (isWild(filter)) {
            putLevels(filter, value);
            stripe = stripe(prefix(filter));
        } else {
            int hash = hash(filter);
            putLiteral(filter, hash, value);
            stripe = stripe(hash);
        }
        // Behind the change: an entry found before it does not count as found after it.
        changes.incrementAndGet(stripe);
    }

    private void putLiteral(byte[] filter, int hash, V value) {
        Literal<V> literal = literal(filter, hash);
        if (literal == null) {
            if (value != null) {
                literals.add(new Literal<>(hash, filter, value));
                filters++;
            }
        } else if (value == null) {
            literals.remove(literal);
            filters--;
        } else {
            literal.value = value;
        }
    }

    private void putLevels(byte[] filter, V value) {
        Level<V> level = root;
        boolean isRest = false;
        for (int from = 0; from <= filter.length && !isRest; ) {
            int end = end(filter, from);
            isRest = isRest(filter, from);
            if (!isRest) {
                Level<V> below = below(level, filter, from, end, value != null);
                if (below == null) {
                    return;
                }
                level = below;
            }
            from = end + 1;
        }
        V before = isRest ? level.rest : level.value;
        if (isRest) {
            level.rest = value;
        } else {
            level.value = value;
        }
        filters += (value == null ? 0 : 1) - (before == null ? 0 : 1);
        while (level != root && level.isEmpty()) {
            Level<V> parent = level.parent;
            if (parent.plus == level) {
                parent.plus = null;
            } else {
                levels.remove(level);
                parent.named--;
            }
            level = parent;
        }
    }

    /** Return the level below another one; where there is none, a new one or null. */
    private Level<V> below(Level<V> level, byte[] filter, int from, int end, boolean add) {
        boolean isPlus = isPlus(filter, from, end);
        long levelHash = isPlus ? 0 : KeyedHash.of(filter, from, end);
        Level<V> below = isPlus ? level.plus : named(level, filter, from, end, levelHash);
        if (below != null || !add) {
            return below;
        }
        byte[] name = isPlus ? NO_NAME : Arrays.copyOfRange(filter, from, end);
        below = new Level<>(childHash(level, levelHash), level, name);
        if (isPlus) {
            level.plus = below;
        } else {
            level.named++;
            levels.add(below);
        }
        return below;
    }

    /** Add the values at all filters that match; a leading $ meets no leading wildcard. */
    public void match(Topic topic, ArrayList<V> found) {
        Literal<V> literal = literal(topic.bytes, topic.hash);
        V value = literal == null ? null : literal.value;
        int end = end(topic.bytes, 0);
        Level<V> tenant = named(root, topic.bytes, 0, end, topic.levels[0]);
        if (tenant == null) {
            add(value, found);
        } else {
            matchLevels(tenant, topic, end + 1, value, found);
        }
    }

    private void matchLevels(
            Level<V> tenant, Topic topic, int start, V literal, ArrayList<V> found) {
        byte[] bytes = topic.bytes;
        // Levels that the topic has reached so far; a filter reaches a level in one way only, so
        // there are never more than the tree has. Walked without recursion: a topic of 64 KiB has
        // as many levels.
        Level<V>[] reached = newLevels(4);
        Level<V>[] below = newLevels(4);
        reached[0] = tenant;
        int count = 1;
        // Whether the last of them was reached by names alone, without wildcards.
        boolean isNamed = true;
        boolean wildcards = start == bytes.length || bytes[start] != '$';
        int from = start;
        for (int depth = 1; from <= bytes.length && count > 0; depth++) {
            int end = end(bytes, from);
            long levelHash = topic.level(depth, from, end);
            if (below.length < count * 2) {
                below = newLevels(count * 4);
            }
            int next = 0;
            Level<V> named = null;
            for (int i = 0; i < count; i++) {
                Level<V> level = reached[i];
                if (wildcards) {
                    add(level.rest, found);
                    Level<V> plus = level.plus;
                    if (plus != null) {
                        below[next++] = plus;
                    }
                }
                named = level.named == 0 ? null : named(level, bytes, from, end, levelHash);
                if (named != null) {
                    below[next++] = named;
                }
            }
            isNamed = isNamed && named != null;
            Level<V>[] spare = reached;
            reached = below;
            below = spare;
            count = next;
            wildcards = true;
            from = end + 1;
        }
        for (int i = 0; i < count; i++) {
            // A filter without wildcards is in its place among the others.
            boolean isPlace = isNamed && i == count - 1;
            add(isPlace ? literal : reached[i].value, found);
            add(reached[i].rest, found);
        }
        if (!isNamed) {
            add(literal, found);
        }
    }

    @SuppressWarnings("unchecked") // Java makes no arrays of generic classes
    private static <V> Level<V>[] newLevels(int count) {
        return (Level<V>[]) new Level<?>[count];
    }

    private static <V> void add(V value, ArrayList<V> found) {
        if (value != null) {
            found.add(value);
        }
    }

    /**
     * Return a number that changes when a filter changes that may match a topic. What was found
     * after it was asked for is right as long as it stays the same.
     */
    long stamp(int hash, long stripes) {
        long sum = changes.get(stripe(hash));
        for (int level = 0; level <= PREFIX_LEVELS; level++) {
            sum += changes.get((int) stripes & STRIPES - 1);
            stripes >>>= STRIPE_BITS;
        }
        return sum;
    }

    /** Return the path of the levels before the first wildcard of a filter, as far as it counts. */
    private static long prefix(byte[] filter) {
        long path = 0;
        int from = 0;
        for (int level = 0; level <= PREFIX_LEVELS && from <= filter.length; level++) {
            int end = end(filter, from);
            if (isRest(filter, from) || isPlus(filter, from, end)) {
                break;
            }
            path = path(path, KeyedHash.of(filter, from, end));
            from = end + 1;
        }
        return path;
    }

    private static long path(long path, long levelHash) {
        return (Long.rotateLeft(path, 23) ^ levelHash) * GOLDEN;
    }

    private static int stripe(long path) {
        return (int) (path >>> 64 - STRIPE_BITS);
    }

    private static int stripe(int hash) {
        return hash & STRIPES - 1;
    }

    private Literal<V> literal(byte[] filter, int hash) {
        HashedSet.Slots<Literal<V>> slots = literals.slots(hash);
        for (int slot = slots.find(hash, hash); slot >= 0; slot = slots.find(hash, slot + 1)) {
            Literal<V> found = slots.get(slot);
            if (found != null && Arrays.equals(found.filter, filter)) {
                return found;
            }
        }
        return null;
    }

    /** Return the level of a name below another one. */
    private Level<V> named(Level<V> level, byte[] topic, int from, int end, long levelHash) {
        int hash = childHash(level, levelHash);
        HashedSet.Slots<Level<V>> slots = levels.slots(hash);
        for (int slot = slots.find(hash, hash); slot >= 0; slot = slots.find(hash, slot + 1)) {
            Level<V> found = slots.get(slot);
            if (found != null
                    && found.parent == level
                    && Arrays.equals(found.name, 0, found.name.length, topic, from, end)) {
                return found;
            }
        }
        return null;
    }

    private static int childHash(Level<?> parent, long levelHash) {
        return (int) ((parent.hash ^ levelHash) * GOLDEN >>> 32);
    }

    /** Return where a level ends. */
    private static int end(byte[] topic, int from) {
        int end = from;
        while (end < topic.length && topic[end] != '/') {
            end++;
        }
        return end;
    }

    /** Tell whether a filter has wildcards; a tenant has none, whatever its name. */
    private static boolean isWild(byte[] filter) {
        for (int from = end(filter, 0) + 1; from <= filter.length; ) {
            int end = end(filter, from);
            if (isRest(filter, from) || isPlus(filter, from, end)) {
                return true;
            }
            from = end + 1;
        }
        return false;
    }

    private static boolean isPlus(byte[] filter, int from, int end) {
        return from > 0 && end == from + 1 && filter[from] == '+';
    }

    private static boolean isRest(byte[] filter, int from) {
        return from > 0 && from == filter.length - 1 && filter[from] == '#';
    }
}
