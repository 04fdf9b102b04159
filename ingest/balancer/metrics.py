"""Metrics of the balancer for Prometheus, read from its state at each scrape."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingest.balancer.control_plane import ControlPlane
    from mqlake.metrics.families import Families


def add_metrics(plane: ControlPlane, families: Families) -> None:
    """Add all metrics; the state that it reads is replaced, never changed, so any thread may."""
    snapshot = plane.snapshot
    for node in snapshot.nodes:
        families.add("mqlake_balancer_node_weight", node.weight, node.name)
        families.add("mqlake_balancer_node_takes_clients", int(node.takes_clients), node.name)
    for known in plane.fleet.describe(plane.now()):
        name = known["name"]
        families.add("mqlake_balancer_node_draining", int(known["draining"]), name)
        for factor, one in known["factors"].items():
            families.add("mqlake_balancer_node_healthy", int(bool(one["healthy"])), name, factor)
        for measure in ("cpu_percent", "overload_level"):
            if known[measure] is not None:
                families.add(f"mqlake_balancer_node_{measure}", known[measure], name)
    for driver in plane.drivers:
        state = driver.state
        is_current = int(state.version == snapshot.version)
        families.add("mqlake_balancer_proxy_current", is_current, state.name)
        families.add("mqlake_balancer_proxy_changes_total", state.changes, state.name)
        families.add("mqlake_balancer_proxy_repairs_total", state.repairs, state.name)
    families.add("mqlake_balancer_snapshots_total", plane.snapshots)
    families.add("mqlake_balancer_left_out_nodes", len(plane.fleet.left_out))
    families.add("mqlake_balancer_talkers", len(snapshot.talkers))
    if plane.loads is not None and plane.loads.made_at is not None:
        families.add("mqlake_balancer_loads_made_timestamp_seconds", plane.loads.made_at)
    if plane.gathered_at is not None:
        families.add("mqlake_balancer_talkers_placed_timestamp_seconds", plane.gathered_at)
    for name, counts in (("probes", plane.probes), ("scrapes", plane.scrapes)):
        for result, count in counts.items():
            families.add(f"mqlake_balancer_{name}_total", count, result)
