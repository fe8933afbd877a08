"""What a rule compares with: names, regular expressions, topic filters with %u and %c.

A regular expression runs on the event loop and nothing can stop it. So the kind that takes long is refused when it is
read (a repeated group that repeats or chooses inside; more ways to match than `WAYS_BITS_MAX`), and none is tried on
more than `REGEX_INPUT_MAX` characters, where an allow then does not match and a deny does.
"""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase, translate
from itertools import pairwise

from msgspec import Struct

from embermq.mqtt.topics.names import validate_filter

REGEX_MAX = 512
"""Characters of a regular expression."""
REGEX_INPUT_MAX = 256
"""Characters of what a regular expression is tried on."""
ANYTHING_MAX = 3
"""How often `.*` and its like may stand in one: each makes the longest time 256 times longer."""
REPEAT_BITS = 7
"""What each of several repeats that can share the same characters multiplies the ways to match by, as a power of 2."""
WAYS_BITS_MAX = 22
"""Ways to match one text that an expression may have, as a power of 2: they are tried in less than a second."""
USER, CLIENT_ID = "%u", "%c"
_SHELL = frozenset("*?[")
_WILDCARD = re.compile(r"([*?[])")
_UNSAFE = frozenset("/+#\0")
"""In a value that is put into a filter these would make other levels of it, or more of them."""
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?#[^)]*\)|\(|\)|[*+?]|\{\d*,?\d*\}|\||.", re.DOTALL)
_GROUP_SPECIAL = re.compile(r"\(\?(?:P<\w+>|P=|[:=!>]|<[=!]|[aiLmsux-]+[:)]|\()")
_VERBOSE = re.compile(r"\(\?[a-zA-Z]*x")
_BACKREFERENCE = re.compile(r"\\[1-9]|\(\?P=|\(\?\(")


class Regex(Struct, frozen=True):
    """A regular expression that the whole of a text must match; make it with `read_regex`."""

    text: str
    compiled: re.Pattern[str]

    def matches(self, text: str, *, if_too_long: bool) -> bool:
        """`if_too_long` is the answer for a text that is longer than what is tried."""
        if len(text) > REGEX_INPUT_MAX:
            return if_too_long
        return self.compiled.fullmatch(text) is not None


def read_regex(text: str) -> Regex:
    """Raises ValueError for one that is wrong, too long or could take for ever."""
    if len(text) > REGEX_MAX:
        raise ValueError(
            f"the regular expression has {len(text)} characters, more than the largest allowed {REGEX_MAX}"
        )
    if USER in text or CLIENT_ID in text:
        raise ValueError(f"{text!r}: %u and %c stand in topics, not in a regular expression")
    try:
        compiled = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from error
    if _VERBOSE.search(text):
        raise ValueError(f"{text!r}: the flag x (verbose) is not allowed")
    if _BACKREFERENCE.search(text):
        raise ValueError(f"{text!r}: references to groups are not allowed, they can take for ever")
    if _repeats_a_choice(text):
        raise ValueError(
            f"{text!r}: a repeated group that repeats or chooses inside can take for ever; write it without one"
        )
    tokens = list(_tokens(text))
    anything = sum(one == "." and next_one[0] in "*+{" for one, next_one in pairwise(tokens))
    if anything > ANYTHING_MAX:
        raise ValueError(
            f"{text!r}: the dot is repeated {anything} times, more than the largest allowed {ANYTHING_MAX}; say [^/]"
            " for a part of a level"
        )
    bits = _ways_bits(tokens)
    if bits > WAYS_BITS_MAX:
        raise ValueError(
            f"{text!r} has up to 2^{bits} ways to match, more than the largest allowed 2^{WAYS_BITS_MAX}: repeats with"
            " nothing between them that ends the one before, and choices, add up"
        )
    return Regex(text, compiled)


def _ways_bits(tokens: list[str]) -> int:
    """An upper bound of the ways in which an expression can match the same text, as a power of 2.

    Repeats add up as long as nothing stands between two of them that the first cannot match itself, such as the / in
    `[^/]*/[^/]*`; it counts outside of groups only, since a group may be left out. What may be there or not, and each
    further branch of a choice, doubles the ways.
    """
    choices = run = longest = depth = 0
    repeated: list[str] = []
    """What the repeats of this run repeat; "" for a group."""
    for index, token in enumerate(tokens):
        before = tokens[index - 1] if index else ""
        after = tokens[index + 1] if index + 1 < len(tokens) else ""
        if token.startswith("("):
            depth += 1
        elif token == ")":
            depth -= 1
        elif token == "|":
            choices += 1
        elif token == "?":
            choices += not _is_repeat(before) and before != "?"  # there it says how a repeat goes about it
        elif _is_repeat(token):
            if re.fullmatch(r"\{\d+\}", token) or _is_repeat(before):
                continue
            run += 1
            longest = max(longest, run)
            repeated.append("" if before == ")" else before)
        elif not depth and not _is_repeat(after) and after != "?" and _ends(repeated, token):
            run = 0
            repeated.clear()
    return REPEAT_BITS * longest + choices


def _is_repeat(token: str) -> bool:
    return token in ("*", "+") or (token[:1] == "{" and len(token) > 1)


def _ends(repeated: list[str], token: str) -> bool:
    """Whether a token is one character that none of the repeated ones can be, in capitals or not."""
    if not re.fullmatch(r"[\w/ ,=:@#-]|\\[^\w\s]", token):
        return False
    character = token[-1]
    return all(
        one not in ("", ".")
        and all(
            re.fullmatch(one, case, flags) is None
            for case in {character.lower(), character.upper()}
            for flags in (0, re.IGNORECASE)
        )
        for one in repeated
    )


def _repeats_a_choice(text: str) -> bool:
    """Whether a group that has more than one way to match is repeated: where time grows exponentially."""
    ways = [False]
    """For each open group: whether it has more than one way."""
    closed = False
    """Whether the token before closed a group with more than one way."""
    for token in _tokens(text):
        repeats = _is_repeat(token)
        if repeats and closed:
            return True
        was_closed, closed = closed, False
        if token.startswith("("):
            ways.append(False)
        elif token == ")" and len(ways) > 1:
            closed = ways.pop()
            ways[-1] = ways[-1] or closed
        elif repeats or token in ("?", "|"):
            ways[-1] = True
            closed = was_closed and token == "?"
    return False


def _tokens(text: str) -> Iterator[str]:
    position = 0
    while position < len(text):
        special = _GROUP_SPECIAL.match(text, position)
        found = special or _TOKEN.match(text, position)
        assert found is not None
        position = found.end()
        token = found.group()
        if token.startswith("(?#") or (special is not None and token.endswith(")")):
            continue  # a comment, or flags for the whole
        if token != "{}":  # braces that stand for themselves
            yield token


class Names(Struct, frozen=True):
    """Users, client ids or certificate subjects. A name that is absent, "", is none of them.

    `of_user` holds patterns in which %u stands for the client's user name; those are nobody's without one.
    """

    exact: frozenset[str] = frozenset()
    shell: tuple[str, ...] = ()
    """With the wildcards `*`, `?` and `[...]`."""
    regex: Regex | None = None
    compiled: tuple[re.Pattern[str], ...] = ()
    """`shell`, made ready when the rules are read: that takes far longer than to match."""
    of_user: tuple[str, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Whether it is a list of names, and nothing has to be tried."""
        return bool(self.exact) and not self.shell and not self.of_user and self.regex is None

    def match(self, name: str, *, deny: bool, user: str = "") -> bool:
        """Whether the name is one of them. `deny` tells what the rule does, for names too long to be tried."""
        if not name:
            return False
        if name in self.exact or any(pattern.match(name) for pattern in self.compiled):
            return True
        if self.of_user and user:
            if len(user) > REGEX_INPUT_MAX:
                return deny
            own = _WILDCARD.sub(r"[\1]", user)  # what a client brings is never a wildcard
            if any(fnmatchcase(name, text.replace(USER, own)) for text in self.of_user):
                return True
        return self.regex is not None and self.regex.matches(name, if_too_long=deny)

    def __str__(self) -> str:
        if self.regex is not None:
            return f"matching {self.regex.text!r}"
        return " or ".join(map(repr, [*sorted(self.exact), *self.shell, *self.of_user]))


def read_names(texts: list[str], *, fills_in: bool = False) -> Names:
    """Exact names, and those with shell wildcards. `fills_in`: %u in them stands for the client's user name."""
    of_user = tuple(text for text in texts if fills_in and USER in text)
    texts = [text for text in texts if text not in of_user]
    exact = frozenset(text for text in texts if not _SHELL & set(text))
    shell = tuple(text for text in texts if text not in exact)
    return Names(exact, shell, compiled=tuple(re.compile(translate(text)) for text in shell), of_user=of_user)


def check_filter(text: str) -> None:
    """Raise TopicError for what is not a filter, %u and %c counting as a name."""
    validate_filter(text.replace(USER, "u").replace(CLIENT_ID, "c"))


def has_placeholder(text: str) -> bool:
    """Whether %u or %c stands in a filter."""
    return USER in text or CLIENT_ID in text


def fill_in(text: str, user: str, client_id: str) -> str | None:
    """The filter for one client. None when what it brings is missing, or would change what the filter means."""
    filled, rest = [], text
    while rest:
        positions = [(rest.find(mark), mark) for mark in (USER, CLIENT_ID) if mark in rest]
        if not positions:
            filled.append(rest)
            break
        position, mark = min(positions)
        value = user if mark == USER else client_id
        if not value or _UNSAFE & set(value):
            return None
        if value.startswith("$") and not position and not filled:  # it would lead to topics of another kind
            return None
        filled += (rest[:position], value)
        rest = rest[position + 2 :]
    return "".join(filled)


def widest(text: str) -> str | None:
    """A filter that covers whatever %u and %c could be: up to the level of the first one. None is every topic."""
    levels: list[str] = []
    for level in text.split("/"):
        if has_placeholder(level):
            return "/".join([*levels, "#"]) if levels else None
        levels.append(level)
    return text
