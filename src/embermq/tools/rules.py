"""`embermq rules`: what is asked for, and which rules there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from embermq.app.config import Settings
from embermq.app.errors import UserError
from embermq.app.pipeline_side import driver_settings
from embermq.pipeline.errors import RuleRefused
from embermq.pipeline.places import Places
from embermq.pipeline.rules.settings import CheckedRule, RuleSettings, SetAsideMessage, TriedRule
from embermq.tools.report_folder import EARLIEST, data_of, log_end, past_range, replay_range


class RuleTrial(Struct, frozen=True, kw_only=True):
    """Which rule is tried, on what, as it was typed. `shown` messages at most are shown; `tasks` of Spark at a time."""

    name: str
    start: str = EARLIEST
    end: str = ""
    shown: int
    tasks: int = 0


def check_rules_sql(names: Sequence[str], settings: Settings) -> dict[str, CheckedRule]:
    """What is to be said of each; all rules without `names`. Raises UserError, PipelineError."""
    from embermq.pipeline.rules.trying import check_sql

    return check_sql(settings.pipeline, chosen(names, settings))


def run_trial(order: RuleTrial, settings: Settings) -> TriedRule:
    """Raises OptionError, UserError, StartError, PipelineError. Nothing is changed."""
    from embermq.pipeline.rules.trying import try_rule

    [(name, rule)] = chosen([order.name], settings).items()
    places, past = Places(data_of(settings, by_slot=True)), past_range(order.start, order.end)
    wanted = replay_range(past, "#", log_end(settings, places))
    try:
        return try_rule(
            driver_settings(settings), places, name, rule, wanted, shown=order.shown, tasks=order.tasks
        )
    except RuleRefused as error:
        raise UserError(f"rules.{name}.sql: {error}") from error


def messages_set_aside(name: str, settings: Settings, limit: int) -> list[SetAsideMessage]:
    """The newest that the rule could not use, the newest first; also of a rule that is not there any more."""
    from embermq.pipeline.rules.set_aside import set_aside_of

    return set_aside_of(Places(Path(settings.data_dir)).rules, name, limit)


def chosen(names: Sequence[str], settings: Settings) -> Mapping[str, RuleSettings]:
    """Rules by name, all without `names`. Raises UserError."""
    rules = settings.rules
    for name in names:
        if name not in rules:
            there = (
                ", ".join(sorted(rules)) or "none; a configuration file (--config) has tables [rules.NAME]"
            )
            raise UserError(f"there is no rule {name}; there are {there}")
    return {name: rules[name] for name in names or sorted(rules)}
