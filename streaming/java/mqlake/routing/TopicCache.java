package mqlake.routing;

import java.util.Arrays;
import java.util.concurrent.atomic.AtomicReferenceArray;

/**
 * What was found for topics not long ago: at most so many, of at most so many bytes each.
 *
 * A topic has four places. One that was asked for since it came is not the first to go: topics that come
 * once do not drive out those that come again and again. Any thread reads and writes without a lock; what
 * two of them write at once is lost at worst, and then found again.
 */
final class TopicCache {
    static final int TOPICS = 65536;
    static final int MOST_BYTES = 256;
    private static final int WAYS = 4;

    /** A topic and what was found; only the mark changes. */
    private static final class Known {
        final byte[] topic;
        final int hash;
        /** Which changes concern it, and the sum of those when it was looked for: TopicFilters.stamp(). */
        final long stripes;
        final long stamp;
        final Object found;
        boolean wasAsked;

        Known(TopicFilters.Topic topic, long stamp, Object found) {
            // A copy: the caller's array is not ours to keep.
            this.topic = topic.bytes.clone();
            this.hash = topic.hash;
            this.stripes = topic.stripes;
            this.stamp = stamp;
            this.found = found;
        }
    }

    private final AtomicReferenceArray<Known> places = new AtomicReferenceArray<>(TOPICS);
    /** Hash of the topic in each place, as a hint: most places need not be looked at. */
    private final int[] hashes = new int[TOPICS];

    /** Return what was found for a topic if that still holds; else null. */
    Object get(byte[] topic, int hash, TopicFilters filters) {
        int first = first(hash);
        for (int place = first; place < first + WAYS; place++) {
            if (hashes[place] != hash) {
                continue;
            }
            Known known = places.get(place);
            if (known != null && known.hash == hash && Arrays.equals(known.topic, topic)) {
                if (known.stamp != filters.stamp(hash, known.stripes)) {
                    return null;
                }
                if (!known.wasAsked) {
                    known.wasAsked = true;
                }
                return known.found;
            }
        }
        return null;
    }

    /** Keep what was found for a topic after its stamp was asked for. */
    void put(TopicFilters.Topic topic, long stamp, Object found) {
        if (topic.bytes.length > MOST_BYTES) {
            return;
        }
        int hash = topic.hash;
        int first = first(hash);
        int chosen = -1;
        for (int place = first; place < first + WAYS; place++) {
            Known known = places.get(place);
            if (known == null || known.hash == hash) {
                chosen = place;
                break;
            }
            if (!known.wasAsked && chosen < 0) {
                chosen = place;
            }
        }
        if (chosen < 0) {
            for (int place = first; place < first + WAYS; place++) {
                Known known = places.get(place);
                if (known != null) {
                    known.wasAsked = false;
                }
            }
            chosen = first + (hash & WAYS - 1);
        }
        places.set(chosen, new Known(topic, stamp, found));
        hashes[chosen] = hash;
    }

    private static int first(int hash) {
        return (hash >>> 8 & TOPICS - 1) & -WAYS;
    }
}
