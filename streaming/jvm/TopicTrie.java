package mqlake.streaming;

import java.util.ArrayList;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Values at topic filters, found by topic name.
 *
 * One thread writes, any number read without a lock: maps are concurrent, the value at a filter is
 * replaced as a whole. A reader that starts after put() returned sees its effect.
 */
public final class TopicTrie {
    /** Both fields are null rather than empty, so that a leaf is small. */
    private static final class Level {
        volatile ConcurrentHashMap<String, Level> children;
        volatile Object value;

        Level child(String name) {
            ConcurrentHashMap<String, Level> below = children;
            return below == null ? null : (Level) below.get(name);
        }

        boolean isEmpty() {
            return value == null && children == null;
        }
    }

    private final Level root = new Level();

    /** Return the value at a filter, null when there is none. */
    public Object get(String topicFilter) {
        Level level = root;
        int from = 0;
        while (from >= 0 && level != null) {
            int slash = topicFilter.indexOf('/', from);
            level = level.child(
                    slash < 0 ? topicFilter.substring(from) : topicFilter.substring(from, slash));
            from = slash < 0 ? -1 : slash + 1;
        }
        return level == null ? null : level.value;
    }

    /**
     * Set the value at a filter.
     *
     * @param value Null takes it out and prunes the levels it leaves empty.
     */
    public void put(String topicFilter, Object value) {
        ArrayList<Object> path = new ArrayList<Object>();
        Level level = root;
        int from = 0;
        while (from >= 0) {
            int slash = topicFilter.indexOf('/', from);
            String name =
                    slash < 0 ? topicFilter.substring(from) : topicFilter.substring(from, slash);
            from = slash < 0 ? -1 : slash + 1;
            Level child = level.child(name);
            if (child == null) {
                if (value == null) {
                    return;
                }
                child = new Level();
                if (level.children == null) {
                    level.children = new ConcurrentHashMap<String, Level>(1);
                }
                level.children.put(name, child);
            }
            path.add(level);
            path.add(name);
            level = child;
        }
        level.value = value;
        for (int i = path.size() - 2; i >= 0 && level.isEmpty(); i -= 2) {
            Level parent = (Level) path.get(i);
            parent.children.remove(path.get(i + 1));
            if (parent.children.isEmpty()) {
                parent.children = null;
            }
            level = parent;
        }
    }

    /** Add the values at all filters that match to a list; a leading $ meets no leading wildcard. */
    public void match(String topicName, ArrayList<Object> found) {
        // Levels that the topic has reached so far; a filter reaches a level in one way only, so
        // there are never more than the trie has. Walked without recursion: a topic of 64 KiB has
        // as many levels.
        Level[] reached = new Level[4];
        Level[] below = new Level[4];
        reached[0] = root;
        int count = 1;
        boolean wildcards = !topicName.startsWith("$");
        int from = 0;
        while (from >= 0 && count > 0) {
            int slash = topicName.indexOf('/', from);
            String name = slash < 0 ? topicName.substring(from) : topicName.substring(from, slash);
            from = slash < 0 ? -1 : slash + 1;
            if (below.length < count * 2) {
                below = new Level[count * 4];
            }
            int next = 0;
            for (int i = 0; i < count; i++) {
                ConcurrentHashMap<String, Level> children = reached[i].children;
                if (children == null) {
                    continue;
                }
                if (wildcards) {
                    collect((Level) children.get("#"), found);
                    Level child = (Level) children.get("+");
                    if (child != null) {
                        below[next++] = child;
                    }
                }
                Level child = (Level) children.get(name);
                if (child != null) {
                    below[next++] = child;
                }
            }
            Level[] spare = reached;
            reached = below;
            below = spare;
            count = next;
            wildcards = true;
        }
        for (int i = 0; i < count; i++) {
            collect(reached[i], found);
            collect(reached[i].child("#"), found);
        }
    }

    /** True when no filter is held, that is, when everything was pruned. */
    public boolean isEmpty() {
        return root.isEmpty();
    }

    private static void collect(Level level, ArrayList<Object> found) {
        Object value = level == null ? null : level.value;
        if (value != null) {
            found.add(value);
        }
    }
}
