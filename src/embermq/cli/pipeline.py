"""`embermq pipeline`: what the Spark queries do."""

from __future__ import annotations

import typer

app = typer.Typer(help="The Spark pipeline: status.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def pipeline() -> None:
    """The Spark pipeline: status."""
