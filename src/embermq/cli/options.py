"""Options that several commands share, and how they become a configuration."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from embermq.app.config import Configuration, load_configuration
from embermq.cli.terminal import Told, tell


def finite(number: float | None) -> float | None:
    """For options that are numbers: a range of them lets `nan` through."""
    if number is not None and not math.isfinite(number):
        raise typer.BadParameter(f"{number} is not a number that can be used")
    return number


ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="A file of settings, in TOML.")
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="One setting; repeatable, wins over --config."),
]
DataDir = Annotated[
    str | None,
    typer.Option(
        "--data-dir", metavar="DIRECTORY", help="The data directory; else data_dir, ./embermq-data."
    ),
]
AllowAnonymous = Annotated[
    bool,
    typer.Option("--allow-anonymous", help="Accept clients without a user name from other machines too."),
]
NoPipeline = Annotated[bool, typer.Option("--no-pipeline", help="Run without Spark; application logs wait.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Tasks = Annotated[
    int, typer.Option("--tasks", min=0, max=64, help="Tasks at a time; 0: as pipeline.master has.")
]
Start = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="POSITION|TIME",
        help="The first one, or `earliest`; times without zone are UTC.",
    ),
]
End = Annotated[
    str,
    typer.Option(
        "--to", metavar="POSITION|TIME", help="The first one that is left out; else what is there now."
    ),
]
Slot = Annotated[
    int | None,
    typer.Option("--slot", metavar="N", min=0, help="Of a cluster with several slots: whose messages."),
]
OneOrAll = Annotated[
    int | None,
    typer.Option("--slot", metavar="N", min=0, help="Of a cluster with several slots: this one alone."),
]
Into = Annotated[
    str, typer.Option("--into", metavar="FOLDER", help="Of the report; else one in the data directory.")
]
ToTopic = Annotated[
    str, typer.Option("--topic", metavar="TOPIC", help="To a topic; {topic} in it is that of the message.")
]
ToQueue = Annotated[str, typer.Option("--queue", metavar="NAME", help="To a durable queue.")]
Rate = Annotated[
    float,
    typer.Option("--rate", min=0.001, max=1_000_000, callback=finite, help="At most this many a second."),
]
Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="Ask the API of a broker at this address."),
]
ProfileName = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", help="Ask the broker of this name in your profiles.toml."),
]
TokenOf = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="With --url: a file with the token.")
]
CaFile = Annotated[
    Path | None, typer.Option("--ca", metavar="FILE", help="With --url: the authority of its certificate.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]


def configuration(
    config_file: Path | None,
    assignments: list[str] | None,
    data_dir: str | None,
    *,
    allow_anonymous: bool = False,
    no_pipeline: bool = False,
) -> Configuration:
    """Compose defaults, file, environment and options; raises ConfigError."""
    options: dict[str, tuple[str, object]] = {}
    if data_dir is not None:
        options["data_dir"] = ("--data-dir", data_dir)
    if allow_anonymous:
        options["clients.allow_anonymous"] = ("--allow-anonymous", True)
    if no_pipeline:
        options["pipeline.enabled"] = ("--no-pipeline", False)
    return load_configuration(
        config_file=config_file, environment=os.environ, assignments=assignments or (), options=options
    )


def with_settings(do: Callable[..., Told | None]) -> Callable[..., None]:
    """A command whose first parameter is the settings in force. It has the options that choose them, and `--json` when
    it returns Told."""

    def run(
        *,
        data_dir: str | None,
        config: Path | None,
        assignments: list[str] | None,
        **given: Any,
    ) -> None:
        as_json = given.pop("as_json") if has_json else False
        told = do(configuration(config, assignments, data_dir).settings, **given)
        if told is not None:
            tell(told, as_json=as_json)

    has_json = inspect.signature(do, eval_str=True).return_annotation is Told
    return offer(run, do, {})


def offer(
    run: Callable[..., None], do: Callable[..., Any], more: Mapping[str, tuple[Any, object]]
) -> Callable[..., None]:
    """Show `run` to the command line as `do` without its first parameter. It has the options that choose the settings,
    `more` by kind and default, and `--json` when `do` returns Told."""
    own = inspect.signature(do, eval_str=True)
    options: dict[str, tuple[Any, object]] = {
        "data_dir": (DataDir, None),
        "config": (ConfigFile, None),
        "assignments": (Assignments, None),
        **more,
    }
    if own.return_annotation is Told:
        options["as_json"] = (AsJson, False)
    parameters = [each.replace(kind=each.KEYWORD_ONLY) for each in own.parameters.values()][1:]
    parameters += [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in options.items()
    ]
    run.__signature__ = own.replace(parameters=parameters, return_annotation=None)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__doc__ = do.__doc__
    return run
