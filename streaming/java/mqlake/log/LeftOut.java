package mqlake.log;

import com.fasterxml.jackson.databind.ObjectMapper;

import mqlake.Vocabulary;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;

/**
 * What could not be sent and never will, told as events of dropped messages, alike ones together.
 */
final class LeftOut {
    private static final Logger LOG = LoggerFactory.getLogger(LeftOut.class);

    /** Different ones between two tellings; what comes on top is told without its topic. */
    private static final int MOST = 1000;

    private final String query;
    private LinkedHashMap<String, Entry> entries = new LinkedHashMap<>();
    private long added;

    LeftOut(String query) {
        this.query = query;
    }

    private static final class Entry {
        String tenant;
        String topic;
        String reason;
        String detail;
        long count;
    }

    /** An event that tells of some. */
    record Event(byte[] key, byte[] value) {}

    /** What tells of those that were noted since the last time; `added` counts all so far. */
    record Taken(Event[] events, long added) {}

    /** Note a record whose key is a tenant and a topic; other keys are of the default tenant. */
    void add(byte[] key, String reason, String detail) {
        String text = key == null ? "" : new String(key, StandardCharsets.UTF_8);
        int slash = text.indexOf('/');
        add(
                slash < 1 ? Vocabulary.DEFAULT_TENANT : text.substring(0, slash),
                text.substring(slash + 1),
                reason,
                detail,
                1);
    }

    void add(String tenant, String topic, String reason, String detail, long count) {
        if (count == 0) {
            return;
        }
        synchronized (this) {
            String name = reason + ' ' + tenant + '/' + topic;
            Entry entry = entries.get(name);
            if (entry == null && entries.size() >= MOST) {
                topic = "";
                name = reason + ' ' + tenant;
                entry = entries.get(name);
            }
            if (entry == null) {
                entry = new Entry();
                entry.tenant = tenant;
                entry.topic = topic;
                entry.reason = reason;
                entries.put(name, entry);
            }
            entry.detail = detail;
            entry.count += count;
            added++;
        }
    }

    /** Return how often something was noted. */
    long added() {
        synchronized (this) {
            return added;
        }
    }

    Taken take() {
        LinkedHashMap<String, Entry> taken;
        long addedSoFar;
        synchronized (this) {
            addedSoFar = added;
            taken = entries;
            entries = entries.isEmpty() ? entries : new LinkedHashMap<>();
        }
        Entry[] each = taken.values().toArray(new Entry[0]);
        Event[] events = new Event[each.length];
        for (int i = 0; i < each.length; i++) {
            Entry entry = each[i];
            LOG.warn(
                    query
                            + " leaves out "
                            + entry.count
                            + " records, "
                            + entry.reason
                            + ": "
                            + entry.detail);
            events[i] =
                    new Event((entry.tenant + "/").getBytes(StandardCharsets.UTF_8), json(entry));
        }
        return new Taken(events, addedSoFar);
    }

    private byte[] json(Entry entry) {
        LinkedHashMap<String, Object> event = new LinkedHashMap<>();
        event.put("v", Integer.valueOf(Vocabulary.RECORD_VERSION));
        event.put("event", Vocabulary.MESSAGE_DROPPED);
        event.put("ts", Long.valueOf(System.currentTimeMillis()));
        event.put("tenant", entry.tenant);
        event.put("reason", entry.reason);
        event.put("topic", entry.topic);
        event.put("detail", query + ": " + entry.detail);
        event.put("count", Long.valueOf(entry.count));
        try {
            return new ObjectMapper().writeValueAsBytes(event);
        } catch (java.io.IOException error) {
            throw new IllegalStateException(error);
        }
    }
}
