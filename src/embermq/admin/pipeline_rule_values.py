"""What operations on rules of the pipeline take and answer."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

NAME_MAX = 32
SQL_MAX = 16_384


class PipelineRuleAsked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule, as the configuration has it, but for what names files of the broker's machine or addresses of others."""

    sql: Annotated[str, Meta(min_length=1, max_length=SQL_MAX)]
    to: Literal["mqtt", "queue", "lake"] = "mqtt"
    queue: str = ""
    every: str = ""
    over: str = ""
    qos: Literal[1, 2] = 1
    sees_rules: bool = False


class PutPipelineRuleRequest(PipelineRuleAsked, frozen=True, kw_only=True):
    """The same under a name."""

    rule: Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]


class PipelineRuleRequest(Struct, frozen=True, kw_only=True):
    """Asks for one rule by its name."""

    rule: Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]


class PipelineRuleView(Struct, frozen=True, kw_only=True):
    """A rule. `is_of_api`: it was put over this API, and is changed over it; the others are in the configuration."""

    name: str
    sql: str
    to: str
    queue: str
    every: str
    over: str
    qos: int
    sees_rules: bool
    is_of_api: bool
