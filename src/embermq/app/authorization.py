"""The files of rules: read at start, on SIGHUP, and when they change."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Callable

from msgspec import Struct

from embermq.access.authorization.rule_set import Decision, RuleSet
from embermq.access.authorization.rules import Action, Principal, Rule, RulePosition
from embermq.access.authorization.rules_file import (
    ACL_BYTES_MAX,
    RULES_BYTES_MAX,
    RulesError,
    read_mosquitto_acl,
    read_rules,
)
from embermq.access.authorization.settings import AuthorizationSettings
from embermq.app.errors import RulesFileError


def rule_document(rule: Rule) -> dict[str, object]:
    """A rule, field by field; None for what does not matter to it."""
    elsewhere = rule.elsewhere
    return {
        "place": str(rule.place),
        "allow": rule.allow,
        "actions": sorted(rule.actions),
        "use_server": elsewhere.server if elsewhere is not None and not elsewhere.moved else None,
        "moved_to": elsewhere.server if elsewhere is not None and elsewhere.moved else None,
        "anonymous": rule.anonymous,
        "user": str(rule.users) if rule.users is not None else None,
        "client_id": str(rule.client_ids) if rule.client_ids is not None else None,
        "certificate": str(rule.certificates) if rule.certificates is not None else None,
        "topics": rule.filters,
        "topic_regex": rule.topic_regex.text if rule.topic_regex is not None else None,
    }


def may_connect(rule_set: RuleSet, principal: Principal, owner: str, note: str) -> Decision:
    """By the rules about client ids, and by whose session there is; `owner` is "" for nobody, `note` says who that
    is."""
    decision = rule_set.decide(principal, Action.CONNECT, "")
    if decision.allowed and owner not in ("", principal.user):
        takeover = rule_set.decide(principal, Action.TAKEOVER, "")
        return Decision(takeover.allowed, takeover.rule, f"{note}\n  {takeover.why}")
    return Decision(decision.allowed, decision.rule, f"{decision.why}\n  {note}")


def topic_asked(action: Action, topic: str) -> str:
    """The topic, or the filter of SUBSCRIBE without its group. Raises TopicError for one that cannot be."""
    from embermq.mqtt.topics.names import parse_shared, validate_filter, validate_topic

    if action is not Action.SUBSCRIBE:
        validate_topic(topic)
        return topic
    validate_filter(topic)
    shared = parse_shared(topic)
    return shared.topic_filter if shared is not None else topic


LOG = logging.getLogger("embermq.authorization")
LOOK_S = 0.5
"""A change is taken when two looks in a row find the same: a file that is being written may still lack its denials."""

Mark = tuple[int, int, int] | None
"""What changes when a file does: its time, size and inode; None when it cannot be looked at."""


class _File(Struct, frozen=True):
    """One file and how it is read; `key` is the setting that names it."""

    key: str
    path: str
    bytes_max: int
    read: Callable[[str, str], list[Rule]]

    def mark(self) -> Mark:
        try:
            return _mark(os.stat(self.path))
        except OSError:
            return None

    def rules(self) -> tuple[Mark, list[Rule]]:
        """Read the file: its mark, to notice a change by, and its rules. Raises RulesFileError."""
        try:
            return self._rules()
        except OSError as error:
            raise RulesFileError(f"{self.key}: cannot read {self.path}: {error.strerror or error}") from error
        except RulesError as error:
            raise RulesFileError(f"{self.key}: {error}") from error

    def _rules(self) -> tuple[Mark, list[Rule]]:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise RulesError(RulePosition(self.path, 0), "is not a file")
            data = file.read(self.bytes_max + 1)
        if len(data) > self.bytes_max:
            raise RulesError(
                RulePosition(self.path, 0), f"is larger than a file of rules may be, {self.bytes_max} bytes"
            )
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise RulesError(RulePosition(self.path, line), "is not UTF-8") from error
        return _mark(found), self.read(text, self.path)


def _mark(found: os.stat_result) -> Mark:
    return found.st_mtime_ns, found.st_size, found.st_ino


class RuleFiles:
    """The rules that the settings name."""

    def __init__(self, settings: AuthorizationSettings) -> None:
        self._no_match = settings.no_match
        self._files = [
            _File("authorization.rules", settings.rules, RULES_BYTES_MAX, read_rules),
            _File("authorization.mosquitto_acl", settings.mosquitto_acl, ACL_BYTES_MAX, read_mosquitto_acl),
        ]
        self._files = [file for file in self._files if file.path]
        self._known: list[Mark] = []
        self._seen: list[Mark] = []
        self._said = ""
        """Why the rules could not be read the last time; it is said once."""
        self._turn = asyncio.Lock()

    def read(self) -> RuleSet | None:
        """What the files say now; None when there is none. Raises RulesFileError."""
        if not self._files:
            return None
        found = [file.rules() for file in self._files]
        self._known = [mark for mark, _ in found]
        rules = [rule for _, of_file in found for rule in of_file]
        return RuleSet(rules, no_match_allows=self._no_match == "allow")

    async def watch(self, authorize: Callable[[RuleSet], None]) -> None:
        """Look at the files until cancelled; hand over the rules of those that change."""
        while self._files:
            await asyncio.sleep(LOOK_S)
            before, self._seen = self._seen, await asyncio.to_thread(self._look)
            if self._seen == before and self._seen != self._known:
                await self._reload(authorize)

    def _look(self) -> list[Mark]:
        return [file.mark() for file in self._files]

    async def reload(self, authorize: Callable[[RuleSet], None]) -> None:
        """Read the files and hand over their rules; when one is broken, say so, and the rules before stay."""
        self._said = ""
        await self._reload(authorize)

    async def _reload(self, authorize: Callable[[RuleSet], None]) -> None:
        async with self._turn:
            self._known = await asyncio.to_thread(self._look)
            try:
                rules = await asyncio.to_thread(self.read)
            except RulesFileError as error:
                if isinstance(error.__cause__, OSError):
                    self._known = []  # it says nothing about the file: the next look may be luckier
                if str(error) != self._said:
                    LOG.error("the rules stay as they were: %s", error)
                self._said = str(error)
                return
            self._said = ""
            if rules is not None:
                authorize(rules)
                LOG.info("%s", self.told(rules))

    def told(self, rules: RuleSet) -> str:
        """One line about what holds now."""
        word = "allowed" if rules.no_match_allows else "denied"
        files = ", ".join(file.path for file in self._files)
        return f"{len(rules.rules)} rules from {files}; what none matches is {word}"
