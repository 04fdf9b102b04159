"""Keep Spark running for a tool that uses Spark Connect."""

from contextlib import closing, suppress
from pathlib import Path

import click

from api.relations.catalog import FUNCTIONS, VIEWS
from api.relations.views import VIEW_SCHEMA
from cli.shared import options as _options
from mqlake.errors import OperationalError
from mqlake.records.rule_tables import rule_tables


@click.command()
@_options.data_dir
def command(data_dir: Path) -> None:
    """Keep Spark running for a tool that uses Spark Connect, until interrupted.

    Prints the address when Spark has the views of the schema mqlake, the tables of rules and the
    functions. It requires the token in <data-dir>/connect-token, which gives read and write access
    to the rows of every tenant.
    """
    from api.spark.connect import JOB_START_SECONDS, SparkConnect

    views = [f"{VIEW_SCHEMA}.{name}" for name in VIEWS]
    connect = SparkConnect(data_dir)
    with suppress(KeyboardInterrupt), connect.use(JOB_START_SECONDS) as use:
        with closing(connect.open({}, use)) as spark:
            spark.make_known([*views, *FUNCTIONS, *rule_tables(data_dir / "tables")])
        click.echo(f"sc://localhost:{use.port}")
        while (end := use.ended()) is None:
            pass
        raise OperationalError(f"Spark has ended: {end.reason}")
