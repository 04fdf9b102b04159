"""Print a dashboard for Grafana, to be imported there."""

import re
from collections.abc import Iterator
from itertools import count
from string import ascii_uppercase
from typing import Final, NamedTuple

import click
from grafana_foundation_sdk.builders import common, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import dashboard as grafana
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    VariableOption,
    VariableRefresh,
)

_COLUMNS: Final = 24
"""Columns of Grafana's grid; the panels of a line share them."""
_SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")


class _Panel(NamedTuple):
    """One panel.

    Attributes:
        unit: As Grafana has it; `cps` are counts a second.
        queries: Legend -> expression of Prometheus, where `[]` is the time to take a rate over.
    """

    title: str
    unit: str
    queries: dict[str, str]
    description: str = ""


_GATEWAY: Final = re.compile(r"@(\w+)")
"""Stands for a metric of the gateways that the reader has chosen."""
_OF_QUERY: Final = "{{query}} {{rule}}"
_OF_RULE: Final = "{{tenant}}/{{rule}}"


def _quantiles(metric: str) -> dict[str, str]:
    by_bound = f"sum by (le) (rate({metric}_seconds_bucket[]))"
    return {f"p{part}": f"histogram_quantile({part / 100:g}, {by_bound})" for part in (50, 95, 99)}


def _slowest(metric: str, label: str) -> dict[str, str]:
    by_label = f"sum by (le, {label}) (rate({metric}_bucket[]))"
    return {f"p95 {{{{{label}}}}}": f"histogram_quantile(0.95, {by_label})"}


_PROCESSES_THAT_ARE_WELL: Final = {
    "well": "sum(mqlake_process_healthy)",
    "of": "count(mqlake_process_healthy)",
}
_OVERVIEW: Final = (
    _Panel(
        "Processes that are well", "none", _PROCESSES_THAT_ARE_WELL, "As the supervisor sees them"
    ),
    _Panel("Clients", "none", {"clients": "sum(mqlake_gateway_clients)"}, "Connected now"),
    _Panel(
        "Messages in",
        "cps",
        {"all": "sum(rate(mqlake_gateway_messages_received_total[]))"},
        "PUBLISH packets from clients",
    ),
    _Panel(
        "Messages out",
        "cps",
        {"all": "sum(rate(mqlake_gateway_messages_sent_total[]))"},
        "PUBLISH packets to clients",
    ),
    _Panel(
        "Dropped",
        "cps",
        {"all": "sum(rate(mqlake_gateway_messages_dropped_total[]))"},
        "Messages owed to a client that it does not get",
    ),
    _Panel(
        "Lag of the router",
        "none",
        {"records": 'sum(mqlake_query_lag_records{query="router"})'},
        "Records of the log that it has not come to",
    ),
)

_GATEWAYS: Final = (
    (
        _Panel(
            "Messages from clients by QoS",
            "cps",
            {"QoS {{qos}}": "sum by (qos) (rate(@messages_received_total[]))"},
        ),
        _Panel(
            "Messages to clients by QoS",
            "cps",
            {"QoS {{qos}}": "sum by (qos) (rate(@messages_sent_total[]))"},
        ),
        _Panel(
            "Clients, sessions, subscriptions",
            "none",
            {one: f"sum(@{one})" for one in ("clients", "sessions", "subscriptions")},
        ),
    ),
    (
        _Panel(
            "PUBLISH to PUBACK", "s", _quantiles("@accept"), "QoS 1 and 2: the log has the message"
        ),
        _Panel("Log to delivery topic", "s", _quantiles("@route"), "What the router takes"),
        _Panel(
            "PUBLISH to PUBLISH to subscribers",
            "s",
            _quantiles("@deliver"),
            "End to end, whichever gateway it came in at",
        ),
    ),
    (
        _Panel(
            "Dropped and refused",
            "cps",
            {
                "{{reason}}": "sum by (reason) (rate(@messages_dropped_total[]))",
                "refused": "sum(rate(@messages_refused_total[]))",
            },
        ),
        _Panel(
            "Queues",
            "none",
            {
                "to the log": "sum(@log_queue_records)",
                "to clients": "sum(@waiting_messages)",
                "wills": "sum(@waiting_wills)",
            },
        ),
        _Panel(
            "Bytes",
            "Bps",
            {one: f"sum(rate(@{one}_bytes_total[]))" for one in ("received", "sent")},
        ),
        _Panel(
            "Connections",
            "cps",
            {one: f"sum(rate(@connections_{one}_total[]))" for one in ("opened", "refused")},
        ),
    ),
)

_SPARK: Final = (
    (
        _Panel(
            "Lag",
            "none",
            {_OF_QUERY: "sum by (query, rule) (mqlake_query_lag_records)"},
            "Records of the log that a query has not come to",
        ),
        _Panel(
            "Records read",
            "cps",
            {_OF_QUERY: "sum by (query, rule) (mqlake_query_input_records_per_second)"},
        ),
        _Panel(
            "Duration of batches",
            "s",
            {_OF_QUERY: "max by (query, rule) (mqlake_query_batch_duration_seconds)"},
            "With the rest after it; real-time queries have none",
        ),
    ),
    (
        _Panel(
            "State",
            "none",
            {_OF_QUERY: "sum by (query, rule) (mqlake_query_state_rows)"},
            "Keys that stateful rules remember",
        ),
        _Panel(
            "Starts after failures",
            "none",
            {_OF_QUERY: "sum by (query, rule) (increase(mqlake_query_restarts_total[]))"},
        ),
        _Panel(
            "Java heap",
            "bytes",
            {"used": "mqlake_jvm_heap_used_bytes", "most": "mqlake_jvm_heap_max_bytes"},
        ),
    ),
)

_RULES: Final = (
    _Panel(
        "Outputs done",
        "cps",
        {_OF_RULE: "sum by (tenant, rule) (rate(mqlake_action_outputs_done_total[]))"},
    ),
    _Panel(
        "Outputs failed, dropped, tried again",
        "cps",
        {
            "failed": "sum(rate(mqlake_action_outputs_failed_total[]))",
            "dropped": "sum(rate(mqlake_action_outputs_dropped_total[]))",
            "tried again": "sum(rate(mqlake_action_retries_total[]))",
        },
    ),
    _Panel(
        "Outputs that wait",
        "none",
        {
            f"{_OF_RULE} in memory": "sum by (tenant, rule) (mqlake_action_queued_outputs)",
            f"{_OF_RULE} behind": "max by (tenant, rule) (mqlake_action_behind_outputs)",
        },
    ),
    _Panel("Message to end of action", "s", _slowest("mqlake_action_latency_seconds", "function")),
)

_API: Final = (
    _Panel(
        "Requests by status",
        "reqps",
        {"{{status}}": "sum by (status) (rate(mqlake_api_requests_total[]))"},
    ),
    _Panel(
        "Duration of requests",
        "s",
        _slowest("mqlake_api_request_duration_seconds", "route"),
        "To the beginning of the answer",
    ),
    _Panel("Readers of live streams", "none", {"readers": "sum(mqlake_api_live_readers)"}),
)

_PROCESSES: Final = (
    (
        _Panel(
            "Memory",
            "bytes",
            {"{{process}}": "mqlake_process_resident_memory_bytes"},
            "Of each process and its children",
        ),
        _Panel(
            "Processor",
            "percentunit",
            {"{{process}}": "rate(mqlake_process_cpu_seconds_total[])"},
            "Of one core",
        ),
        _Panel(
            "Starts after failures",
            "none",
            {"{{process}}": "increase(mqlake_process_restarts_total[])"},
        ),
        _Panel(
            "Lines of warning and error in logs",
            "cps",
            {
                "{{instance}} {{level}}": "sum by (instance, level) "
                '(rate(mqlake_logged_lines_total{level=~"WARNING|ERROR|CRITICAL"}[]))'
            },
        ),
    ),
    (
        _Panel(
            "Free disk",
            "bytes",
            {"data directory": "mqlake_data_free_bytes"},
            "Of the data directory",
        ),
        _Panel(
            "Well or not",
            "none",
            {"{{process}}": "mqlake_process_healthy"},
            "1 while a process says that it is well",
        ),
    ),
)

_BALANCER: Final = (
    (
        _Panel("Takes new clients", "none", {"{{node}}": "mqlake_balancer_node_takes_clients"}),
        _Panel("Weight", "none", {"{{node}}": "mqlake_balancer_node_weight"}),
        _Panel("Overload level", "none", {"{{instance}}": "mqlake_gateway_overload_level"}),
        _Panel(
            "Proxies that run the snapshot in force",
            "none",
            {"{{proxy}}": "mqlake_balancer_proxy_current"},
        ),
    ),
    (
        _Panel(
            "Age of expected loads and of places",
            "s",
            {
                "expected loads": "time() - mqlake_balancer_loads_made_timestamp_seconds",
                "places of talkers": "time() - mqlake_balancer_talkers_placed_timestamp_seconds",
            },
            "Loads are made once a day from the history; clients are placed again with new loads, "
            "and when a node comes",
        ),
        _Panel(
            "Clients placed for the topics they hear",
            "none",
            {"{{instance}}": "mqlake_balancer_talkers"},
        ),
    ),
)

_ROWS: Final = {
    "Gateways": _GATEWAYS,
    "Spark": _SPARK,
    "Rules": (_RULES,),
    "API": (_API,),
    "Processes": _PROCESSES,
    "Balancer": _BALANCER,
}
"""Title -> lines of panels below it."""


def render() -> str:
    """Return the dashboard as JSON, by the schema of Grafana 11.6."""
    source = grafana.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
    built = (
        grafana.Dashboard("mqlake")
        .uid("mqlake")
        .tags(["mqlake", "mqtt"])
        .timezone("browser")
        .refresh("10s")
        .time("now-1h", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(source)
        .with_variable(_instances())
    )
    ids = count(1)
    built.with_row(grafana.Row("Overview").id(next(ids)))
    for one in _OVERVIEW:
        built.with_panel(_number(one).id(next(ids)).span(_COLUMNS // len(_OVERVIEW)))
    for title, lines in _ROWS.items():
        built.with_row(grafana.Row(title).id(next(ids)))
        for line in lines:
            for one in line:
                built.with_panel(_curves(one).id(next(ids)).span(_COLUMNS // len(line)))
    return JSONEncoder(sort_keys=True, indent=1).encode(built.build())


def _instances() -> grafana.QueryVariable:
    return (
        grafana.QueryVariable("instance")
        .label("Gateway")
        .datasource(_SOURCE)
        .query({"query": "label_values(mqlake_gateway_connections, instance)", "refId": "A"})
        .include_all(include_all=True)
        .multi(multi=True)
        .all_value(".*")
        .current(VariableOption(text="All", value="$__all"))
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    )


def _number(one: _Panel) -> stat.Panel:
    """Return a panel with one number, over a curve in the background."""
    last = common.ReduceDataOptions().calcs(["lastNotNull"]).values(values=False)
    panel = stat.Panel().title(one.title).description(one.description).height(5)
    panel.datasource(_SOURCE).targets([*_targets(one)]).unit(one.unit).min(0)
    return panel.color_mode(options.BigValueColorMode.VALUE).reduce_options(last)


def _curves(one: _Panel) -> timeseries.Panel:
    legend = common.VizLegendOptions().display_mode(options.LegendDisplayMode.LIST)
    tooltip = common.VizTooltipOptions().mode(options.TooltipDisplayMode.MULTI)
    panel = timeseries.Panel().title(one.title).description(one.description).height(8)
    panel.datasource(_SOURCE).targets([*_targets(one)]).unit(one.unit).min(0)
    panel.line_width(1).fill_opacity(8).show_points(options.VisibilityMode.NEVER)
    panel.legend(legend.placement(options.LegendPlacement.BOTTOM).show_legend(show_legend=True))
    return panel.tooltip(tooltip.sort(options.SortOrder.DESCENDING))


def _targets(one: _Panel) -> Iterator[prometheus.Dataquery]:
    for letter, (legend, expression) in zip(ascii_uppercase, one.queries.items(), strict=False):
        asked = _GATEWAY.sub(r'mqlake_gateway_\1{instance=~"$instance"}', expression)
        asked = asked.replace("[]", "[$__rate_interval]")
        query = prometheus.Dataquery().datasource(_SOURCE).ref_id(letter)
        yield query.expr(asked).legend_format(legend)


@click.command()
def command() -> None:
    """Print a dashboard for Grafana.

    Import the file there (Dashboards, New, Import): bin/mqlake grafana > mqlake.json
    """
    click.echo(render())
