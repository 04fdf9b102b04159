package mqlake.stateful;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import mqlake.routing.TopicFilters;
import mqlake.rules.MessageRow;
import mqlake.rules.RuleFilter;
import org.apache.spark.sql.api.java.UDF3;

/**
 * Spark function: (log topic, key, value) to whether a record is of concern to one stream of a rule with
 * memory: one of its filters matches, or it is the barrier of a change. Most records cost no more.
 */
public final class StreamFilter implements UDF3 {
    private static final long serialVersionUID = 1L;

    private final String spec;
    private transient volatile StreamSpec stream;
    private transient volatile TopicFilters filters;

    public StreamFilter(String spec) {
        this.spec = spec;
    }

    /** The raw signature: Janino writes no bridge methods. */
    public Object call(Object logTopic, Object keyBytes, Object value) {
        byte[] key = (byte[]) keyBytes;
        if (key == null) {
            return Boolean.FALSE;
        }
        TopicFilters wanted = filters;
        if (wanted == null) {
            wanted = read();
        }
        if (!stream.logTopic.equals(logTopic)) {
            return Boolean.FALSE;
        }
        if (key.length > 0 && key[0] == 0) {
            return Boolean.valueOf(RuleFilter.isBarrier(key));
        }
        int slash = RuleFilter.slash(key);
        if (slash < 0
                || !stream.tenant.equals(new String(key, 0, slash, StandardCharsets.UTF_8))) {
            return Boolean.FALSE;
        }
        byte[] topic = key;
        if (stream.isEvents) {
            MessageRow.Event event = MessageRow.Event.read((byte[]) value);
            if (event == null) {
                return Boolean.FALSE;
            }
            topic = TopicFilters.key(stream.tenant, event.topicName);
        }
        ArrayList<Object> found = new ArrayList<Object>(2);
        wanted.match(new TopicFilters.Topic(topic), found);
        return Boolean.valueOf(!found.isEmpty());
    }

    private TopicFilters read() {
        StreamSpec known = StreamSpec.read(spec);
        TopicFilters read = new TopicFilters();
        for (int i = 0; i < known.filters.length; i++) {
            read.put(TopicFilters.key(known.tenant, known.filters[i]), Boolean.TRUE);
        }
        stream = known;
        filters = read;
        return read;
    }
}
