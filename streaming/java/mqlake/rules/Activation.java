package mqlake.rules;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Map;

/**
 * Reads the records of mqlake.rules that concern the engine; mqlake/records/rules.py has their
 * form.
 */
final class Activation {
    private static final Logger LOG = LoggerFactory.getLogger(Activation.class);
    private static final ObjectMapper JSON = new ObjectMapper();

    private Activation() {}

    /** Return the stateful versions of an activation; no value has none. */
    static RuleVersion[] runs(String tenant, String rule, byte[] value) throws IOException {
        return versions(tenant, rule, value, true, false);
    }

    /**
     * Return the stateless versions of an activation; no value has none.
     *
     * @param isEvaluated Whether they are to be evaluated in this JVM, and so to be compiled and
     *     counted.
     */
    static RuleVersion[] versions(String tenant, String rule, byte[] value, boolean isEvaluated)
            throws IOException {
        return versions(tenant, rule, value, false, isEvaluated);
    }

    private static RuleVersion[] versions(
            String tenant, String rule, byte[] value, boolean wantsStateful, boolean isEvaluated)
            throws IOException {
        ArrayList<RuleVersion> versions = new ArrayList<>();
        JsonNode spans = value == null ? null : field(JSON.readTree(value), "spans");
        for (int i = 0; spans != null && i < spans.size(); i++) {
            JsonNode span = spans.get(i);
            if (isStateful(span) == wantsStateful) {
                versions.add(version(tenant, rule, span, isEvaluated));
            }
        }
        return versions.toArray(new RuleVersion[versions.size()]);
    }

    private static boolean isStateful(JsonNode span) {
        return span.hasNonNull("plan");
    }

    /** Return the expressions of an activation. */
    static String[] expressions(byte[] value) throws IOException {
        JsonNode spans = value == null ? null : field(JSON.readTree(value), "spans");
        ArrayList<String> expressions = new ArrayList<>();
        for (int i = 0; spans != null && i < spans.size(); i++) {
            JsonNode span = spans.get(i);
            if (!isStateful(span)) {
                expressions.add(field(span, "expression").asText());
            }
        }
        return expressions.toArray(new String[expressions.size()]);
    }

    /** Return the number in a record that says which changes are decided. */
    static long decided(byte[] value) throws IOException {
        return value == null ? -1 : field(JSON.readTree(value), "change").asLong();
    }

    private static RuleVersion version(
            String tenant, String rule, JsonNode span, boolean isEvaluated) {
        CompiledRule code = null;
        try {
            code = isEvaluated ? RuleCompiler.compile(field(span, "expression").asText()) : null;
        } catch (IllegalArgumentException error) {
            // Its records become dead letters.
            LOG.warn("rule " + rule + " does not compile: " + error.getMessage());
        }
        HashMap<String, long[][]> ranges = new HashMap<>();
        for (Map.Entry<String, JsonNode> entry : field(span, "sources").properties()) {
            JsonNode range = entry.getValue();
            ranges.put(
                    entry.getKey(),
                    new long[][] {offsets(field(range, "from")), offsets(field(range, "to"))});
        }
        JsonNode names = field(span, "filters");
        String[] filters = new String[names.size()];
        for (int i = 0; i < filters.length; i++) {
            filters[i] = names.get(i).asText();
        }
        return new RuleVersion(
                tenant,
                rule,
                field(span, "version").asInt(),
                filters,
                ranges,
                code,
                isEvaluated ? RuleCounters.of(tenant + "/" + rule) : null,
                span.hasNonNull("change") ? span.get("change").asLong() : 0,
                span.hasNonNull("ended_at") ? span.get("ended_at").asLong() : Long.MAX_VALUE);
    }

    private static long[] offsets(JsonNode array) {
        if (array.isNull()) {
            return null;
        }
        long[] offsets = new long[array.size()];
        for (int i = 0; i < offsets.length; i++) {
            offsets[i] = array.get(i).asLong();
        }
        return offsets;
    }

    private static JsonNode field(JsonNode object, String name) {
        JsonNode value = object.get(name);
        if (value == null) {
            throw new IllegalArgumentException("no " + name);
        }
        return value;
    }
}
