"""The entry of `embermq`: finds the command, loads that one alone, and turns errors into one line each."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Annotated, Any

import typer

from embermq import __version__
from embermq.app.errors import ConfigError, EmberError, missing
from embermq.cli import packaged
from embermq.pipeline.errors import PipelineError
from embermq.ports.errors import StoreError

COMMANDS: dict[str, str] = {
    "run": "embermq.cli.run",
    "check-config": "embermq.cli.check_config",
    "service": "embermq.cli.service",
    "import": "embermq.cli.import_conf",
    "import-embedded": "embermq.cli.import_embedded",
    "users": "embermq.cli.users",
    "tokens": "embermq.cli.tokens",
    "bans": "embermq.cli.bans",
    "acl": "embermq.cli.acl",
    "certs": "embermq.cli.certs",
    "audit": "embermq.cli.audit_trail",
    "sessions": "embermq.cli.sessions",
    "queues": "embermq.cli.queues",
    "messages": "embermq.cli.messages",
    "pipeline": "embermq.cli.pipeline",
    "rules": "embermq.cli.rules",
    "trace": "embermq.cli.trace",
    "log": "embermq.cli.log",
    "backup": "embermq.cli.backup",
    "restore": "embermq.cli.restore",
    "check-stores": "embermq.cli.check_stores",
    "cluster": "embermq.cli.cluster",
    "version": "embermq.cli.version",
}
"""The commands of this package, by module, as help lists them; behind them come those of others (`cli/packaged.py`)."""

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

EXIT_CODES = """\b
Exit codes:
  0    done
  1    failed: the line on standard error says why
  2    an unknown option or setting, or an invalid value
  3    a job or a check finished, but something is left, lost or damaged
  4    run: no memory is left
  130  interrupted
"""
"""Below the list of commands; docs/operations.md has the few that mean more than this."""

OPTION_VALUES = {"int range": "N", "float range": "N", "float": "N", "str": "TEXT"}
"""What help calls the value of an option, by its type. Those of other types are called well by themselves."""

# What typer raises for wrong options; it exports the most special of these classes only.
_UsageError: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the program's exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return run_program("embermq", app_for(words), words)


def run_program(name: str, app: typer.Typer, words: Sequence[str]) -> int:
    """Run the program of that name and return its exit code: what goes wrong is one line on standard error."""
    command = typer.main.get_command(app)
    _put_in_order(command)
    _name_values(command)
    try:
        code = command.main(args=list(words), prog_name=name, standalone_mode=False)
    except _UsageError as error:
        return _say_usage(error, " ".join([name, *words[:1]]))
    except ConfigError as error:
        return _say(*error.problems, code=error.exit_code)
    except EmberError as error:
        return _say(str(error), code=error.exit_code)
    except (PipelineError, StoreError) as error:
        return _say(str(error), code=EXIT_ERROR)
    except ModuleNotFoundError as error:
        return _say(f"{' '.join([name, *words[:2]])} needs {missing(error)}", code=EXIT_ERROR)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe left, as `head` does; nothing more can be said there.
        sys.stdout = None
        return EXIT_ERROR
    except OSError as error:
        return _say(_told(error), code=EXIT_ERROR)
    return code if isinstance(code, int) else 0


def _put_in_order(command: Any) -> None:
    """List commands by what they are for: typer has groups of commands behind all others."""
    places = {name: place for place, name in enumerate((*COMMANDS, *packaged.PACKAGES[packaged.COMMANDS]))}
    commands = getattr(command, "commands", {})
    if commands.keys() <= places.keys():
        command.commands = dict(sorted(commands.items(), key=lambda each: places[each[0]]))


def _name_values(command: Any) -> None:
    """Give each value without a name the one that help shows: an argument's own, or what an option takes."""
    for parameter in command.params:
        if parameter.param_type_name == "option":
            parameter.metavar = parameter.metavar or OPTION_VALUES.get(parameter.type.name)
            continue
        if parameter.metavar is None:
            choices = "|".join(getattr(parameter.type, "choices", ()))
            parameter.metavar = (
                f"{{{choices}}}" if choices else (parameter.name or "").upper().replace("_", "-")
            )
            if parameter.nargs == -1:
                parameter.metavar += "..."
        if parameter.required:
            parameter.make_metavar = partial(_metavar, parameter.metavar)
    for each in getattr(command, "commands", {}).values():
        _name_values(each)


def _metavar(name: str, ctx: Any, *, usage: bool = False) -> str:
    """What is required as it is typed; typer puts it in braces."""
    return name


def new_app() -> typer.Typer:
    """A program without commands, which says things as all of EmberMQ's do."""
    return typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def app_for(words: Sequence[str]) -> typer.Typer:
    """The application with the command that the words name, or with all of them for help and mistakes.

    Only one is loaded in the usual case, so that the broker carries nothing that other commands need.
    """
    app = new_app()

    @app.callback(epilog=EXIT_CODES)
    def embermq(
        version: Annotated[
            bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
        ] = False,
    ) -> None:
        """An MQTT broker whose persistent sessions lose nothing, with a data pipeline on Apache Spark."""

    first = next((word for word in words or _to_complete() if not word.startswith("-")), "")
    of_packages = packaged.PACKAGES[packaged.COMMANDS]
    wanted = {first} if first in {*COMMANDS, *of_packages} else {*COMMANDS, *of_packages}
    for name, module in COMMANDS.items():
        if name in wanted:
            packaged.add_module(app, name, import_module(module))
    if not wanted.isdisjoint(of_packages):
        packaged.add_packaged(app, packaged.COMMANDS)
    return app


def _to_complete() -> list[str]:
    """The words of which a shell asks how they go on: without the program, and without the one that is being typed."""
    if "_EMBERMQ_COMPLETE" not in os.environ:
        return []
    typed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    return re.split(r"\s+", typed)[1:-1]


def _show_version(wanted: bool) -> None:
    """As most programs do; `embermq version` has more to say."""
    if wanted:
        print(f"embermq {__version__}")
        raise typer.Exit


def _say(*problems: str, code: int) -> int:
    for problem in problems:
        print(f"embermq: {' '.join(problem.split())}", file=sys.stderr)
    return code


def _say_usage(error: Exception, program: str) -> int:
    """A command without its words shows its help; all else is one line. The parser's errors have no context."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
        print(context.get_help(), file=sys.stderr)
        return EXIT_USAGE
    text: str = error.format_message() if hasattr(error, "format_message") else str(error)
    text = text.replace("Value error, ", "").rstrip(".")
    place = program if context is None else context.command_path
    return _say(f"{text} (see {place} --help)", code=EXIT_USAGE)


def _told(error: OSError) -> str:
    told = error.strerror or str(error)
    return f"{error.filename}: {told}" if error.filename else told
