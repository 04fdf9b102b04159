package mqlake.routing;

import java.util.Arrays;
import java.util.concurrent.atomic.AtomicReferenceArray;

/**
 * What was found for topics not long ago: at most so many, of at most so many bytes each.
 *
 * <p>A topic has four places. One that was asked for since it came is not the first to go: topics
 * that come once do not drive out those that come again and again. Any thread reads and writes
 * without a lock; at worst an entry that two of them write at once is lost, and found again.
 *
 * @param <F> What is found.
 */
final class TopicCache<F> {
    static final int TOPICS = 65536;
    static final int MOST_BYTES = 256;
    private static final int WAYS = 4;

    /** A topic and what was found; immutable. */
    private static final class Known<F> {
        final byte[] topic;
        final int hash;

        /**
         * Which changes concern it, and the sum of those when it was looked for:
         * TopicFilters.stamp().
         */
        final long stripes;

        final long stamp;
        final F found;

        Known(TopicFilters.Topic topic, long stamp, F found) {
            this.topic = topic.bytes;
            this.hash = topic.hash;
            this.stripes = topic.stripes;
            this.stamp = stamp;
            this.found = found;
        }
    }

    private final AtomicReferenceArray<Known<F>> places = new AtomicReferenceArray<>(TOPICS);
    // Of the topic in each place, as a hint, so that most topics need not be fetched from memory:
    // its hash, and whether it was asked for since it came.
    private final int[] hashes = new int[TOPICS];
    private final boolean[] asked = new boolean[TOPICS];

    /** Return what was found for a topic if that still holds; else null. */
    F get(byte[] topic, int hash, TopicFilters<?> filters) {
        int first = first(hash);
        for (int place = first; place < first + WAYS; place++) {
            if (hashes[place] != hash) {
                continue;
            }
            Known<F> known = places.get(place);
            if (known != null && known.hash == hash && Arrays.equals(known.topic, topic)) {
                if (known.stamp != filters.stamp(hash, known.stripes)) {
                    return null;
                }
                if (!asked[place]) {
                    asked[place] = true;
                }
                return known.found;
            }
        }
        return null;
    }

    /** Keep what was found for a topic, and its bytes, after its stamp was asked for. */
    void put(TopicFilters.Topic topic, long stamp, F found) {
        if (topic.bytes.length > MOST_BYTES) {
            return;
        }
        int place = place(topic.hash);
        places.set(place, new Known<>(topic, stamp, found));
        hashes[place] = topic.hash;
        asked[place] = false;
    }

    /**
     * Choose the place for a topic: its own, a free one, that of one that was not asked for, any.
     */
    private int place(int hash) {
        int first = first(hash);
        int chosen = -1;
        for (int place = first; place < first + WAYS; place++) {
            if (hashes[place] == hash || places.get(place) == null) {
                return place;
            }
            if (!asked[place] && chosen < 0) {
                chosen = place;
            }
        }
        if (chosen < 0) {
            Arrays.fill(asked, first, first + WAYS, false);
            chosen = first + (hash & WAYS - 1);
        }
        return chosen;
    }

    private static int first(int hash) {
        return (hash >>> 8 & TOPICS - 1) & -WAYS;
    }
}
