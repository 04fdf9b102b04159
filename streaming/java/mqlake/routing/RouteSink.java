package mqlake.routing;

import mqlake.log.LogSink;

import java.util.Map;

/**
 * The sink of the router: rows are records of the inbound log topic, of which {@link RouteFunction}
 * makes what is sent. As a function in SQL it would have each record written twice more, as rows.
 *
 * <p>Options beside those of {@link LogSink}: the log topics `inbound`, `routes` and, with the name
 * of a gateway behind it, `deliveries`; `awaited` is that of the routes in force. `shards` says how
 * many the retained messages have.
 */
public final class RouteSink extends LogSink {
    @Override
    protected Sending sending(Map<String, String> client, Map<String, String> options) {
        return new RouteFunction(
                client,
                options.get("routes"),
                options.get("deliveries"),
                options.get("inbound"),
                options.get("awaited"),
                Integer.parseInt(options.get("shards")));
    }
}
