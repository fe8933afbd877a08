"""Texts that strangers chose, for a person's terminal."""

from __future__ import annotations


def shown(text: str) -> str:
    """The text with what cannot be shown spelt out: nothing that a client chose may steer the terminal."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
