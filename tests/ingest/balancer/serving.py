"""A control plane with its socket, in a thread of its own: for those who ask it and do not wait."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ingest.balancer.control_plane import ControlPlane
from ingest.balancer.control_socket import ControlSocket
from ingest.balancer.settings import BalancerSettings
from mqlake.clock import SystemClock
from tests.waiting import until

DEADLINE_SECONDS = 120.0


@contextmanager
def served_plane(data_dir: Path, **more: Any) -> Iterator[ControlPlane]:
    """Serve where `up --balanced` does; proxies are driven as far as there are any."""
    folder = data_dir / "balancer"
    settings = BalancerSettings(
        control_socket=folder / "control.sock", state_file=folder / "state.json", **more
    )
    made: list[ControlPlane] = []
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    ready = threading.Event()

    async def serve() -> None:
        plane = ControlPlane(settings, SystemClock())
        control = ControlSocket(settings.control_socket, plane)
        await control.open()
        made.append(plane)
        running = asyncio.create_task(plane.run(stop))
        await until(lambda: sum(plane.probes.values()) >= len(settings.nodes))
        ready.set()
        try:
            await running
        finally:
            await control.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    try:
        assert ready.wait(DEADLINE_SECONDS)
        yield made[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(DEADLINE_SECONDS)
        loop.close()
