"""Operations on a data directory without a broker, and what is asked of one in no UTF-8."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from embermq.access.authentication.passwords import PasswordHashes
from embermq.admin import access_operations as ops
from embermq.admin.trail import ListChangesRequest
from embermq.app.accounts import accounts_of
from embermq.app.audit_trail import changes
from embermq.app.config import Settings
from embermq.app.control import ControlClient
from embermq.app.directory_client import accounts_here
from embermq.app.errors import OptionError, UserError

ODD = b"\xff".decode(errors="surrogateescape")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(Settings(), data_dir=str(tmp_path / "data"))


def test_a_password_of_any_bytes_is_kept_here_and_refused_by_the_api(
    settings: Settings, tmp_path: Path
) -> None:
    accounts_here(settings).ask(ops.ADD_ACCOUNT, name="ann", password=ODD)
    with accounts_of(settings) as accounts:
        assert PasswordHashes().matches(accounts.find("ann").password_hash, b"\xff")
    with pytest.raises(OptionError, match="is no text in UTF-8"):
        ControlClient(tmp_path).ask(ops.ADD_ACCOUNT, name="ann", password=ODD)


def test_each_change_is_in_the_trail_as_a_broker_notes_it(settings: Settings) -> None:
    here = accounts_here(settings)
    for name in ("ann", "bob"):
        here.ask(ops.ADD_ACCOUNT, name=name)
    here.ask(ops.DISABLE_ACCOUNT, user="ann")
    with pytest.raises(UserError, match="there is no user 'eve'"):
        here.ask(ops.REMOVE_ACCOUNT, user="eve")
    with pytest.raises(OptionError, match="length"):
        here.ask(ops.ADD_ACCOUNT, name="x" * 70_000)
    assert [one["name"] for one in here.pages(ops.LIST_ACCOUNTS)] == ["ann", "bob"]
    found = changes(Path(settings.data_dir), ListChangesRequest())
    assert [(one.operation, one.over, one.object, one.outcome) for one in reversed(found)] == [
        ("AddAccount", "command", {"name": "ann", "type": "device", "scram": False}, "done"),
        ("AddAccount", "command", {"name": "bob", "type": "device", "scram": False}, "done"),
        ("DisableAccount", "command", {"user": "ann"}, "done"),
        ("RemoveAccount", "command", {"user": "eve"}, "refused: there is no user 'eve'"),
    ]
