package mqlake.routing;

import java.util.concurrent.atomic.AtomicReferenceArray;

/**
 * Entries by their hash; who asks compares the rest.
 *
 * One thread writes, any number read without a lock: an entry never moves within an array, and an array
 * that has become too small or too large is replaced by another. A reader that starts after a call of
 * the writer returned sees its effect. There are many arrays, so that to replace one takes microseconds.
 */
final class HashedSet {
    /** What is held; subclasses add what it stands for. */
    static class Entry {
        final int hash;

        Entry(int hash) {
            this.hash = hash;
        }
    }

    private static final int PARTS = 256;
    private static final int PART_SHIFT = 24;
    private static final int LEAST_SLOTS = 4;
    private static final AtomicReferenceArray<Entry> NO_SLOTS = new AtomicReferenceArray<>(1);
    /** Where an entry was: who looks for another goes on. */
    private static final Entry REMOVED = new Entry(0);

    private final AtomicReferenceArray<AtomicReferenceArray<Entry>> parts =
            new AtomicReferenceArray<>(PARTS);
    // The writer's own. Of each part: how many slots are not null, and how many of those hold an entry.
    private final int[] used = new int[PARTS];
    private final int[] held = new int[PARTS];

    HashedSet() {
        for (int i = 0; i < PARTS; i++) {
            parts.set(i, NO_SLOTS);
        }
    }

    /**
     * Return the slots that entries of a hash are in: from `first` on, one after the other and round the
     * end, up to a slot that is null.
     */
    AtomicReferenceArray<Entry> slots(int hash) {
        return parts.get(hash >>> PART_SHIFT);
    }

    static int first(AtomicReferenceArray<Entry> slots, int hash) {
        return hash & slots.length() - 1;
    }

    static int next(AtomicReferenceArray<Entry> slots, int slot) {
        return slot + 1 & slots.length() - 1;
    }

    /** Add an entry that it does not hold. */
    void add(Entry entry) {
        int part = entry.hash >>> PART_SHIFT;
        if ((used[part] + 1) * 2 > slots(entry.hash).length()) {
            rebuild(part, held[part] + 1);
        }
        AtomicReferenceArray<Entry> slots = slots(entry.hash);
        int slot = first(slots, entry.hash);
        while (slots.get(slot) != null) {
            slot = next(slots, slot);
        }
        slots.set(slot, entry);
        used[part]++;
        held[part]++;
    }

    /** Remove an entry that it holds. */
    void remove(Entry entry) {
        int part = entry.hash >>> PART_SHIFT;
        AtomicReferenceArray<Entry> slots = slots(entry.hash);
        int slot = first(slots, entry.hash);
        while (slots.get(slot) != entry) {
            slot = next(slots, slot);
        }
        held[part]--;
        if (slots.get(next(slots, slot)) == null) {
            slots.set(slot, null);
            used[part]--;
        } else {
            slots.set(slot, REMOVED);
        }
        if (held[part] * 8 < slots.length()) {
            rebuild(part, held[part]);
        }
    }

    /** Replace the slots of a part by some of which at most half, and at least an eighth, are used. */
    private void rebuild(int part, int entries) {
        if (entries == 0) {
            parts.set(part, NO_SLOTS);
            used[part] = 0;
            return;
        }
        int length = LEAST_SLOTS;
        while (entries * 3 > length) {
            length *= 2;
        }
        AtomicReferenceArray<Entry> old = parts.get(part);
        AtomicReferenceArray<Entry> fresh = new AtomicReferenceArray<>(length);
        for (int i = 0; i < old.length(); i++) {
            Entry entry = old.get(i);
            if (entry != null && entry != REMOVED) {
                int slot = first(fresh, entry.hash);
                while (fresh.getPlain(slot) != null) {
                    slot = next(fresh, slot);
                }
                fresh.setPlain(slot, entry);
            }
        }
        used[part] = held[part];
        parts.set(part, fresh);
    }
}
