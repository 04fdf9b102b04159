package mqlake.routing;

import mqlake.Vocabulary;

import java.util.zip.CRC32;

/**
 * One share group, `$share/name/filter`, over all its gateways, and how it was before; immutable
 * but for what it forgets.
 *
 * <p>The choice is the twin of mqlake/topics/sharing.py; both pass the same generated cases.
 */
final class ShareGroup {
    /**
     * So long a group knows how it was: longer than the router goes back when it repeats itself.
     * `ingest/session/groups/share_routes.py` relies on this and the next one.
     */
    private static final long KEPT_MS = 10 * 60 * 1000;

    /** And so many states. */
    private static final int MOST_KEPT = 64;

    /** 2^64 divided by the golden ratio: multiples of it spread evenly, whatever their distance. */
    private static final long GOLDEN = 0x9e3779b97f4a7c15L;

    /** What the route of a share group says of its gateway; immutable. */
    static final class Weight {
        /** Of a last resort they count only while there is nothing else. */
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

    final byte[] sharedFilter;

    /** Sorted, so that the choice does not depend on the order in which routes came. */
    final String[] gateways;

    final Weight[] weights;
    final long total;

    /** There is nothing but last resorts, so they count. */
    private final boolean onlyLast;

    /** The gateway that joined first; -1 without any. */
    final int first;

    final long salt;

    /** Offset of the route that made it so. */
    final long routesOffset;

    /** When the log had that, milliseconds UTC. */
    final long sinceMs;

    /**
     * How it was before; null when that is forgotten, or there was nothing. Only the writer changes
     * it.
     */
    private volatile ShareGroup previous;

    /** A group that nobody has joined yet. */
    ShareGroup(byte[] sharedFilter) {
        this(sharedFilter, new String[0], new Weight[0], -1, Long.MIN_VALUE, null);
    }

    ShareGroup(
            byte[] sharedFilter,
            String[] gateways,
            Weight[] weights,
            long routesOffset,
            long sinceMs,
            ShareGroup previous) {
        this.routesOffset = routesOffset;
        this.sinceMs = sinceMs;
        this.previous = previous;
        this.sharedFilter = sharedFilter;
        this.gateways = gateways;
        this.weights = weights;
        boolean onlyLast = true;
        for (int i = 0; i < weights.length; i++) {
            onlyLast = onlyLast && weights[i].strategy == Vocabulary.STRATEGY_LAST_RESORT;
        }
        this.onlyLast = onlyLast;
        long sum = 0;
        int earliest = -1;
        for (int i = 0; i < weights.length; i++) {
            if (!counts(weights[i])) {
                continue;
            }
            sum += weights[i].members;
            if (earliest < 0 || weights[i].since < weights[earliest].since) {
                earliest = i;
            }
        }
        this.total = sum;
        this.first = earliest;
        this.salt = crc32(sharedFilter, 0) << 32;
    }

    /** Return the group as it is when routes up to an offset are in force, or the oldest known. */
    ShareGroup at(long inForce) {
        ShareGroup group = this;
        while (group.routesOffset > inForce) {
            ShareGroup before = group.previous;
            if (before == null) {
                break;
            }
            group = before;
        }
        return group;
    }

    /** Forget how the group was long ago. */
    void forget() {
        int count = 1;
        for (ShareGroup group = this; group.previous != null; group = group.previous) {
            if (sinceMs - group.sinceMs > KEPT_MS || count++ == MOST_KEPT) {
                group.previous = null;
                return;
            }
        }
    }

    private boolean counts(Weight weight) {
        return onlyLast || weight.strategy != Vocabulary.STRATEGY_LAST_RESORT;
    }

    /** Tell whether it has had no gateway for so long that nobody asks any more. */
    boolean isOver(long nowMs) {
        return total == 0 && nowMs - sinceMs > KEPT_MS;
    }

    /** The gateway for a message: in proportion to its members, always the same for one message. */
    String choose(byte[] topic, byte[] publisher, int partition, long offset) {
        int strategy = weights[first].strategy;
        if (strategy == Vocabulary.STRATEGY_STICKY) {
            return gateways[first];
        }
        long pick =
                switch (strategy) {
                    case Vocabulary.STRATEGY_ROUND_ROBIN, Vocabulary.STRATEGY_LAST_RESORT -> {
                        long turn = offset * GOLDEN + mix((partition + 1) ^ salt);
                        yield ((turn >>> 33) * total) >>> 31;
                    }
                    case Vocabulary.STRATEGY_RANDOM ->
                            Long.remainderUnsigned(mix(mix(partition + 1) ^ offset ^ salt), total);
                    case Vocabulary.STRATEGY_HASH_TOPIC ->
                            Long.remainderUnsigned(
                                    mix(crc32(topic, nameStart(topic)) ^ salt), total);
                    case Vocabulary.STRATEGY_HASH_CLIENT_ID ->
                            Long.remainderUnsigned(mix(crc32(publisher, 0) ^ salt), total);
                    default -> throw new IllegalStateException("no strategy " + strategy);
                };
        for (int i = 0; i < weights.length; i++) {
            if (!counts(weights[i])) {
                continue;
            }
            pick -= weights[i].members;
            if (pick < 0) {
                return gateways[i];
            }
        }
        throw new IllegalStateException("share group without members");
    }

    private static long crc32(byte[] bytes, int from) {
        CRC32 crc = new CRC32();
        crc.update(bytes, from, bytes.length - from);
        return crc.getValue();
    }

    /** Return where the topic name begins behind its tenant. */
    private static int nameStart(byte[] topic) {
        int at = 0;
        while (topic[at] != '/') {
            at++;
        }
        return at + 1;
    }

    /** The finalizer of SplitMix64: neighbouring seeds give unrelated results. */
    static long mix(long value) {
        value = (value ^ (value >>> 30)) * 0xbf58476d1ce4e5b9L;
        value = (value ^ (value >>> 27)) * 0x94d049bb133111ebL;
        return value ^ (value >>> 31);
    }
}
