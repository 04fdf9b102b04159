package mqlake.log;

import java.util.Map;
import java.util.Properties;

/** What a Kafka client is told of the options that our functions carry. */
public final class ClientOptions {
    private static final String OURS = "mqlake.";

    /** A broker that stands still, or whose machine does not answer, is waited for so long. */
    private static final long REQUEST_MS = 10000;

    private ClientOptions() {}

    /** Return a copy without what is for us alone. */
    public static Properties of(Map<String, String> config) {
        Properties properties = new Properties();
        properties.put("request.timeout.ms", String.valueOf(REQUEST_MS));
        config.forEach(
                (name, value) -> {
                    if (!name.startsWith(OURS)) {
                        properties.put(name, value);
                    }
                });
        return properties;
    }
}
