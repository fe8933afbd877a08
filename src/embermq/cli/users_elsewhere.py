"""`embermq users --url`: the same for the accounts of a broker elsewhere, by its API."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from embermq.admin import access_operations as ops
from embermq.admin.access_values import AccountView, MadePassword
from embermq.app.control import ControlClient
from embermq.app.errors import OptionError


def all_accounts(broker: ControlClient) -> list[AccountView]:
    """By name."""
    return [msgspec.convert(one, AccountView) for one in broker.pages(ops.LIST_ACCOUNTS)]


def add(
    broker: ControlClient, names: list[str], kind: str, read: Callable[[], bytes] | None, *, scram: bool
) -> list[str]:
    """Make accounts; without `read`, which returns the password of the one, the broker makes passwords."""
    password = _text(read()) if read is not None else ""
    lines = []
    for name in names:
        asked = broker.ask(ops.ADD_ACCOUNT, name=name, type=kind, scram=scram, password=password)
        lines.append(_told(asked, f"added {name} ({kind}{', scram' if scram else ''})"))
    return lines


def set_password(
    broker: ControlClient, name: str, read: Callable[[], bytes] | None, *, scram: bool
) -> list[str]:
    """Change one; without `read` the broker makes it."""
    password = _text(read()) if read is not None else ""
    asked = broker.ask(ops.SET_PASSWORD, user=name, password=password, scram=scram)
    return [_told(asked, f"changed the password of {name}")]


def remove(broker: ControlClient, name: str) -> list[str]:
    """Its connections end."""
    broker.ask(ops.REMOVE_ACCOUNT, user=name)
    return [f"removed {name}"]


def disable(broker: ControlClient, name: str) -> list[str]:
    """Its connections end, too."""
    broker.ask(ops.DISABLE_ACCOUNT, user=name)
    return [f"disabled {name}"]


def enable(broker: ControlClient, name: str) -> list[str]:
    """It may enter again."""
    broker.ask(ops.ENABLE_ACCOUNT, user=name)
    return [f"enabled {name}"]


def _text(password: bytes) -> str:
    """JSON has text alone, and an empty one would have the broker make a password. Raises OptionError."""
    try:
        text = password.decode()
    except UnicodeDecodeError:
        raise OptionError("the password is no text in UTF-8, which the API takes alone") from None
    if not text:
        raise OptionError("the password is empty; --generate has one made")
    return text


def _told(asked: object, done: str) -> str:
    made = msgspec.convert(asked, MadePassword)
    return f"{made.name}\t{made.password}" if made.password is not msgspec.UNSET else done
