"""What can go wrong between the command line and a running broker."""

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
