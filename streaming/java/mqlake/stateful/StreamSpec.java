package mqlake.stateful;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

import mqlake.rules.RuleVersion;

import java.io.IOException;

/**
 * What streaming/rules/plans.py says of one stream of a run: the run, and the stream of its plan.
 *
 * <p>A run is one version of a stateful rule, from the change that put it in force.
 */
final class StreamSpec {
    private static final ObjectMapper JSON = new ObjectMapper();

    final String tenant;
    final String rule;
    final int version;
    final long change;

    /** Name of the run. */
    final String run;

    /** Folder of the query's checkpoint. */
    final String checkpoint;

    final String name;
    final String logTopic;
    final boolean isEvents;
    final String[] filters;

    /** Whether they match more than one topic. */
    final boolean isWide;

    final String condition;

    /** Time of the event, in microseconds, then the columns. */
    final String[] columns;

    /** Which of them is how many rules the message has come through; -1: none. */
    final int hopsColumn;

    final long sizeMs;
    final long slideMs;

    private StreamSpec(JsonNode run, JsonNode stream) {
        this.tenant = field(run, "tenant").asText();
        this.rule = field(run, "rule").asText();
        this.version = field(run, "version").asInt();
        this.change = field(run, "change").asLong();
        this.run = field(run, "run").asText();
        this.checkpoint = field(run, "checkpoint").asText();
        this.name = field(stream, "name").asText();
        this.logTopic = field(stream, "log_topic").asText();
        this.isEvents = field(stream, "is_events").asBoolean();
        this.filters = texts(field(stream, "filters"));
        this.isWide = RuleVersion.isWide(filters);
        this.condition = field(stream, "condition").asText();
        this.columns = texts(field(stream, "columns"));
        this.hopsColumn = field(stream, "hops_column").asInt();
        this.sizeMs = field(stream, "size_ms").asLong();
        this.slideMs = field(stream, "slide_ms").asLong();
    }

    static StreamSpec read(String text) {
        try {
            JsonNode node = JSON.readTree(text);
            return new StreamSpec(field(node, "run"), field(node, "stream"));
        } catch (IOException error) {
            throw new IllegalArgumentException("not JSON: " + error.getMessage(), error);
        }
    }

    private static String[] texts(JsonNode array) {
        String[] found = new String[array.size()];
        for (int i = 0; i < found.length; i++) {
            found[i] = array.get(i).asText();
        }
        return found;
    }

    private static JsonNode field(JsonNode object, String name) {
        JsonNode value = object.get(name);
        if (value == null) {
            throw new IllegalArgumentException("no " + name);
        }
        return value;
    }
}
