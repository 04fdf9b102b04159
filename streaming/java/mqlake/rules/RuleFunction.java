package mqlake.rules;

import java.util.HashMap;
import java.util.Map;
import mqlake.log.LogLimits;
import org.apache.spark.sql.api.java.UDF8;
import scala.collection.Iterator;
import scala.collection.Seq;

/**
 * Spark function: a record of mqlake.inbound or mqlake.events to what the rules make of it, an array of
 * (log topic, partition, key, value, headers).
 *
 * Arguments: log topic, partition, offset, timestamp ms, key, value, names and values of the headers.
 * Which records come here is RuleFilter's matter. The record formats are those of mqlake/records.py and
 * mqlake/rule_records.py.
 */
public final class RuleFunction implements UDF8 {
    private static final long serialVersionUID = 1L;

    private final Map<String, String> clientConfig;
    private final Map<String, String> logTopics;
    private transient volatile RuleFollower follower;
    private transient volatile RuleEvaluation evaluation;

    /** Log topics: rules, metrics, events, outputs and dead_letters, by these names. */
    public RuleFunction(Map<String, String> clientConfig, Map<String, String> logTopics) {
        this.clientConfig = new HashMap<String, String>(clientConfig);
        this.logTopics = new HashMap<String, String>(logTopics);
    }

    /** The raw signature: Janino writes no bridge methods. */
    public Object call(
            Object logTopic, Object partition, Object offset, Object timestampMs,
            Object key, Object value, Object headerNames, Object headerValues) {
        RuleFollower rules = follower;
        if (rules == null) {
            evaluation = new RuleEvaluation(
                    (String) logTopics.get("events"), (String) logTopics.get("outputs"),
                    (String) logTopics.get("dead_letters"), LogLimits.of(clientConfig));
            rules = RuleFollower.of(clientConfig, (String) logTopics.get("rules"));
            RuleMetrics.start(clientConfig, (String) logTopics.get("metrics"));
            follower = rules;
        }
        return evaluation.evaluate(
                rules.table(), (String) logTopic, ((Integer) partition).intValue(),
                ((Long) offset).longValue(), ((Long) timestampMs).longValue(), (byte[]) key,
                (byte[]) value, names(headerNames), values(headerValues));
    }

    public static String[] names(Object headers) {
        String[] names = new String[headers == null ? 0 : ((Seq) headers).size()];
        if (names.length > 0) {
            Iterator each = ((Seq) headers).iterator();
            for (int i = 0; i < names.length; i++) {
                names[i] = (String) each.next();
            }
        }
        return names;
    }

    public static byte[][] values(Object headers) {
        byte[][] values = new byte[headers == null ? 0 : ((Seq) headers).size()][];
        if (values.length > 0) {
            Iterator each = ((Seq) headers).iterator();
            for (int i = 0; i < values.length; i++) {
                values[i] = (byte[]) each.next();
            }
        }
        return values;
    }
}
