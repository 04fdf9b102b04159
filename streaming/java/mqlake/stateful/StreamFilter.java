package mqlake.stateful;

import mqlake.routing.TopicFilters;
import mqlake.rules.MessageRow;
import mqlake.rules.RuleFilter;

import org.apache.spark.sql.api.java.UDF3;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;

/**
 * Spark function: (log topic, key, value) to whether a record is of concern to one stream of a
 * stateful rule: one of its filters matches, or it is the barrier of a change. Most records cost no
 * more.
 */
public final class StreamFilter implements UDF3<String, byte[], byte[], Boolean> {
    private static final long serialVersionUID = 1L;

    private final String spec;
    private transient volatile StreamSpec stream;
    private transient volatile TopicFilters<Boolean> filters;

    public StreamFilter(String spec) {
        this.spec = spec;
    }

    @Override
    public Boolean call(String logTopic, byte[] key, byte[] value) {
        if (key == null) {
            return false;
        }
        TopicFilters<Boolean> wanted = filters;
        if (wanted == null) {
            wanted = read();
        }
        if (!stream.logTopic.equals(logTopic)) {
            return false;
        }
        if (key.length > 0 && key[0] == 0) {
            return RuleFilter.isBarrier(key);
        }
        int slash = RuleFilter.slash(key);
        if (slash < 0 || !stream.tenant.equals(new String(key, 0, slash, StandardCharsets.UTF_8))) {
            return false;
        }
        byte[] topic = key;
        if (stream.isEvents) {
            MessageRow.Event event = MessageRow.Event.read(value);
            if (event == null) {
                return false;
            }
            topic = TopicFilters.key(stream.tenant, event.topicName);
        }
        ArrayList<Boolean> found = new ArrayList<>(2);
        wanted.match(new TopicFilters.Topic(topic), found);
        return !found.isEmpty();
    }

    private TopicFilters<Boolean> read() {
        StreamSpec known = StreamSpec.read(spec);
        TopicFilters<Boolean> read = new TopicFilters<>();
        for (int i = 0; i < known.filters.length; i++) {
            read.put(TopicFilters.key(known.tenant, known.filters[i]), Boolean.TRUE);
        }
        stream = known;
        filters = read;
        return read;
    }
}
