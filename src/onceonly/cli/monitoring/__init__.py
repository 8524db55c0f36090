"""`onceonly metrics`: the alert rules and the Grafana dashboard that come with the package."""

from importlib.resources import files
from typing import Final

import typer

app: Final = typer.Typer(help="Print alert rules and a dashboard for the metrics.", no_args_is_help=True)


@app.command()
def alerts() -> None:
    """Print the alert rules for Prometheus, in YAML."""
    typer.echo(shipped("alerts.yml"), nl=False)


@app.command()
def grafana() -> None:
    """Print the Grafana dashboard, in JSON. Import it in Grafana, and select the data source there."""
    typer.echo(shipped("grafana.json"), nl=False)


def shipped(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
