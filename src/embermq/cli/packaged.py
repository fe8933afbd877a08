"""Commands of packages of their own: `embermq bench`, `pub`, `sub` and `embermq pipeline migrate`.

A package names the module of its command as an entry point. Nothing here imports it before somebody types the command.
"""

from __future__ import annotations

from types import ModuleType

import typer

from embermq.app.errors import UserError

COMMANDS = "embermq.commands"
PIPELINE_COMMANDS = "embermq.pipeline_commands"
PACKAGES: dict[str, dict[str, str]] = {
    COMMANDS: {"pub": "embermq-client", "sub": "embermq-client", "bench": "embermq-bench"},
    PIPELINE_COMMANDS: {"migrate": "embermq-migrate"},
}
"""Entry point group -> command -> the package that has it."""

_ANY_WORDS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def add_module(app: typer.Typer, name: str, module: ModuleType) -> None:
    """Add a command: its module has either `command`, a function, or `app`, a group of commands."""
    if hasattr(module, "app"):
        app.add_typer(module.app, name=name)
    else:
        app.command(name, context_settings=getattr(module, "CONTEXT_SETTINGS", None))(module.command)


def add_packaged(app: typer.Typer, group: str) -> None:
    """Add the commands of one group; one that is not installed says which package it needs."""
    from importlib.metadata import entry_points  # of every command only these need it

    found = {point.name: point for point in entry_points(group=group)}
    for name, package in PACKAGES[group].items():
        if name in found:
            add_module(app, name, found[name].load())
        else:
            _add_absent(app, name, package)


def _add_absent(app: typer.Typer, name: str, package: str) -> None:
    @app.command(name, context_settings=_ANY_WORDS, help=f"Not installed: it is in {package}.")
    def absent(context: typer.Context) -> None:
        raise UserError(
            f"{context.command_path} is not installed: run `make install`, or pip install {package}, which is in "
            f"./{package.removeprefix('embermq-')} of the repository"
        )
