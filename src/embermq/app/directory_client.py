"""What commands ask of a data directory, or of the servers that its settings name: no broker has to run.

It is asked as a running broker is (`app.control`), by the same table of operations, and answers the same.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from embermq.admin import access_operations as ops
from embermq.admin.errors import OperationRefused, RequestRefused
from embermq.admin.operation import AdminOperation
from embermq.admin.trail import is_change, object_of
from embermq.app.access_desks import AccountsAsked, TokensAsked
from embermq.app.accounts import accounts_of
from embermq.app.audit_trail import AuditTrail, command_recorded
from embermq.app.config import Settings
from embermq.app.control import ControlClient
from embermq.app.errors import OptionError, UserError

OpenDesk = Callable[[AdminOperation], AbstractContextManager[object]]
"""What an operation acts upon, held while it is done."""


class DirectoryClient(ControlClient):
    """This process does what is asked, and notes each change in the audit trail of the data directory."""

    is_this_process = True

    def __init__(self, data_dir: Path, opened: OpenDesk) -> None:
        super().__init__(data_dir)
        self._opened = opened

    def ask(self, operation: AdminOperation, **fields: Any) -> Any:
        """What comes of it, as JSON has it; fields that are None are left out. Raises OptionError for what cannot be,
        UserError for another refusal, StoreError."""
        return self._do(operation, _request(operation, fields))

    def pages(self, operation: AdminOperation, **fields: Any) -> Iterator[Any]:
        """Every entry of a list. Without `limit` it is one page: nobody else waits for it."""
        if "limit" in fields:
            yield from super().pages(operation, **fields)
        else:
            yield from self._do(operation, replace(_request(operation, fields), limit=2**63 - 1))

    def _do(self, operation: AdminOperation, request: Struct) -> Any:
        about = object_of(operation, request)
        change = command_recorded(self._data_dir, operation.name, about)
        with _telling(), change if is_change(operation) else nullcontext(), self._opened(operation) as desk:
            return msgspec.to_builtins(asyncio.run(_answer(operation.do(desk, request))))


def _request(operation: AdminOperation, fields: dict[str, Any]) -> Struct:
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return msgspec.convert(given, operation.request)
    except msgspec.ValidationError as error:
        raise OptionError(str(error)) from None


async def _answer(found: Any) -> Any:
    return await found if inspect.isawaitable(found) else found


@contextmanager
def _telling() -> Iterator[None]:
    """In a command's words: what a broker would have answered with a status."""
    try:
        yield
    except RequestRefused as error:
        raise OptionError(str(error)) from None
    except OperationRefused as error:
        raise UserError(str(error)) from None


def accounts_here(settings: Settings) -> DirectoryClient:
    """Of the accounts that a broker with these settings has."""

    @contextmanager
    def opened(operation: AdminOperation) -> Iterator[object]:
        with accounts_of(settings, create=operation is ops.ADD_ACCOUNT) as accounts:
            yield AccountsAsked(accounts)

    return DirectoryClient(Path(settings.data_dir), opened)


def tokens_here(settings: Settings) -> DirectoryClient:
    """Of the tokens of a data directory."""
    directory = Path(settings.data_dir)

    @contextmanager
    def opened(operation: AdminOperation) -> Iterator[object]:
        if operation is not ops.CREATE_TOKEN:  # an empty list would say that nobody needs a token
            check_there(directory)
        yield TokensAsked(directory)

    return DirectoryClient(directory, opened)


def trail_here(settings: Settings) -> DirectoryClient:
    """Of the audit trail of a data directory."""
    directory = Path(settings.data_dir)

    @contextmanager
    def opened(_: AdminOperation) -> Iterator[object]:
        check_there(directory)
        yield AuditTrail(directory)

    return DirectoryClient(directory, opened)


def archive_here(settings: Settings) -> DirectoryClient:
    """Of the archive that a broker with these settings has."""

    @contextmanager
    def opened(_: AdminOperation) -> Iterator[object]:
        from embermq.app.archive_desk import ArchiveAsked  # other commands need no pipeline
        from embermq.app.message_archive import SEARCH_S

        yield ArchiveAsked(settings, answer_s=SEARCH_S)

    return DirectoryClient(Path(settings.data_dir), opened)


def rules_here(settings: Settings) -> DirectoryClient:
    """Of the rules of the pipeline that a broker with these settings has."""

    @contextmanager
    def opened(_: AdminOperation) -> Iterator[object]:
        from embermq.app.pipeline_rules import RulesShown

        yield RulesShown(settings)

    return DirectoryClient(Path(settings.data_dir), opened)


def check_there(data_dir: Path) -> None:
    """Raises UserError for a data directory that is not."""
    if not data_dir.is_dir():
        raise UserError(f"there is no data directory {data_dir}; name it with --data-dir")
