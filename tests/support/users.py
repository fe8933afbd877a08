"""Accounts for tests, made without the program."""

from __future__ import annotations

from pathlib import Path

from embermq.app.accounts import accounts_of
from embermq.app.config import Settings
from embermq.model.client_type import ClientType

PASSWORD = b"secret"


def add_users(data_dir: Path, *names: str, client_type: ClientType = ClientType.DEVICE) -> None:
    """Accounts with the password `PASSWORD`."""
    data_dir.mkdir(parents=True, exist_ok=True)
    with accounts_of(Settings(data_dir=str(data_dir)), create=True) as accounts:
        for name in names:
            accounts.add(name, PASSWORD, client_type)
