"""Send real sensor readings through the system and count them."""

from contextlib import suppress
from pathlib import Path

import click

from cli.shared import options as _options
from mqlake.api_client import ApiClient
from mqlake.errors import OperationalError
from mqlake.processes.status import read_state, url_host


@click.command()
@_options.data_dir
@click.option(
    "--messages", type=click.IntRange(1, 17_518), default=2400, help="Number of readings."
)
@click.option(
    "--speed", type=click.FloatRange(1, 20_000), default=240.0, help="Messages per second."
)
def command(data_dir: Path, messages: int, speed: float) -> None:
    """Send real sensor readings through the system and count them.

    Hourly temperatures of two cities in 2010, 24 devices with one client each, QoS 1; a subscriber
    prints some of the messages. At the end it prints the numbers of messages published,
    acknowledged and received.
    """
    # paho and the data take a while to load: not before the options are known to be right.
    from cli.system._devices import TOPIC_FILTER, run_demo

    state = read_state(data_dir)
    # The query that this ends on waits less for its Spark then.
    with suppress(OperationalError):
        ApiClient(data_dir).post("/sql/start")
    gateways = [(url_host(gateway.host), gateway.port) for gateway in state.gateways]
    click.echo(f"publishing {messages:,} readings, subscribed to {TOPIC_FILTER}", err=True)
    outcome = run_demo(gateways, messages=messages, per_second=speed, show=click.echo)
    click.echo()
    click.echo(f"published     {outcome.published:8,}")
    click.echo(f"acknowledged  {outcome.acknowledged:8,}")
    click.echo(f"received      {outcome.received:8,}   in {outcome.seconds:.1f} s")
    if not outcome.published == outcome.acknowledged == outcome.received or outcome.duplicates:
        raise OperationalError(
            f"{outcome.published} messages were published, {outcome.acknowledged} acknowledged, "
            f"{outcome.received} received and {outcome.duplicates} received twice: "
            f"see bin/mqlake status --data-dir {data_dir}"
        )
    click.echo("\nthe same number from the history:")
    click.echo(f'bin/mqlake sql --data-dir {data_dir} "{outcome.sql}"')
