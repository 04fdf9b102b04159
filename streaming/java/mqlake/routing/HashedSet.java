package mqlake.routing;

import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicReferenceArray;

/**
 * Entries by their hash; the caller compares the rest.
 *
 * <p>One thread writes, any number read without a lock: an entry never moves within its slots, and
 * slots of which there are too few or too many are replaced as a whole. A reader that starts after
 * a call of the writer returned sees its effect. There are many parts, so that to replace one takes
 * microseconds.
 */
final class HashedSet<E extends HashedSet.Entry> {
    /** What is held; subclasses add what it stands for. */
    static class Entry {
        final int hash;

        Entry(int hash) {
            this.hash = hash;
        }
    }

    /**
     * Places for entries, at most half of them used, and for each the hash of its entry: most
     * look-ups find nothing, and need not fetch any entry from memory for that.
     */
    static final class Slots<E extends Entry> {
        private static final int FREE = 0;

        private final AtomicIntegerArray hashes;

        /** Null where there is none any more: a look-up of another goes on. */
        private final AtomicReferenceArray<E> entries;

        Slots(int length) {
            hashes = new AtomicIntegerArray(length);
            entries = new AtomicReferenceArray<>(length);
        }

        /**
         * Return the first slot of a hash from a place on, round the end; -1 without one.
         *
         * @param from The hash itself to begin with, then behind the slot before.
         */
        int find(int hash, int from) {
            int mask = hashes.length() - 1;
            int wanted = noted(hash);
            int slot = from & mask;
            for (int found = hashes.get(slot); found != FREE; found = hashes.get(slot)) {
                if (found == wanted) {
                    return slot;
                }
                slot = slot + 1 & mask;
            }
            return -1;
        }

        /** Return the entry in a slot; null when it was removed. */
        E get(int slot) {
            return entries.get(slot);
        }

        private int length() {
            return hashes.length();
        }

        private void add(E entry) {
            int mask = hashes.length() - 1;
            int slot = entry.hash & mask;
            while (hashes.get(slot) != FREE) {
                slot = slot + 1 & mask;
            }
            // Before its hash: a reader that sees that sees the entry.
            entries.set(slot, entry);
            hashes.set(slot, noted(entry.hash));
        }

        /** Remove an entry; true when its slot is free again. */
        private boolean remove(E entry) {
            int mask = hashes.length() - 1;
            int slot = entry.hash & mask;
            while (entries.get(slot) != entry) {
                slot = slot + 1 & mask;
            }
            boolean isLast = hashes.get(slot + 1 & mask) == FREE;
            if (isLast) {
                hashes.set(slot, FREE);
            }
            entries.set(slot, null);
            return isLast;
        }

        private static int noted(int hash) {
            return hash == FREE ? 1 : hash;
        }
    }

    private static final int PARTS = 256;
    private static final int PART_SHIFT = 24;
    private static final int LEAST_SLOTS = 4;

    private final Slots<E> noSlots = new Slots<>(1);
    private final AtomicReferenceArray<Slots<E>> parts = new AtomicReferenceArray<>(PARTS);
    // The writer's own. Of each part: how many slots are not free, and how many of those hold an
    // entry.
    private final int[] used = new int[PARTS];
    private final int[] held = new int[PARTS];

    HashedSet() {
        for (int i = 0; i < PARTS; i++) {
            parts.set(i, noSlots);
        }
    }

    /** Return the slots that entries of a hash are in. */
    Slots<E> slots(int hash) {
        return parts.get(hash >>> PART_SHIFT);
    }

    /** Add an entry that it does not hold. */
    void add(E entry) {
        int part = entry.hash >>> PART_SHIFT;
        if ((used[part] + 1) * 2 > parts.get(part).length()) {
            rebuild(part, held[part] + 1);
        }
        parts.get(part).add(entry);
        used[part]++;
        held[part]++;
    }

    /** Remove an entry that it holds. */
    void remove(E entry) {
        int part = entry.hash >>> PART_SHIFT;
        Slots<E> slots = parts.get(part);
        held[part]--;
        if (slots.remove(entry)) {
            used[part]--;
        }
        if (held[part] * 8 < slots.length()) {
            rebuild(part, held[part]);
        }
    }

    /**
     * Replace the slots of a part by some of which at most half, and at least an eighth, are used.
     */
    private void rebuild(int part, int entries) {
        if (entries == 0) {
            parts.set(part, noSlots);
            used[part] = 0;
            return;
        }
        int length = LEAST_SLOTS;
        while (entries * 3 > length) {
            length *= 2;
        }
        Slots<E> old = parts.get(part);
        Slots<E> fresh = new Slots<>(length);
        for (int slot = 0; slot < old.length(); slot++) {
            E entry = old.get(slot);
            if (entry != null) {
                fresh.add(entry);
            }
        }
        used[part] = held[part];
        parts.set(part, fresh);
    }
}
