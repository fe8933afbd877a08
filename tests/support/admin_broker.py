"""A broker with a token of each scope, and its API as tests ask it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from tests.support.broker_process import BrokerProcess
from tests.support.users import add_users

from embermq.admin.access import Scope
from embermq.app.api_tokens import TokenFile


class AdminBroker(BrokerProcess):
    """With accounts of these names."""

    def __init__(
        self, folder: Path, *users: str, settings: Mapping[str, object] | None = None, pipeline: bool = False
    ) -> None:
        super().__init__(folder / "data", settings=settings, pipeline=pipeline)
        if users:
            add_users(self.data_dir, *users)
        tokens = TokenFile(self.data_dir)
        self.tokens = {scope: tokens.create(scope.value, scope, 0) for scope in Scope}

    @property
    def url(self) -> str:
        """Of the API."""
        return f"http://127.0.0.1:{self.http_port}/api/v1"

    def ask(self, method: str, path: str, scope: Scope | None = Scope.ADMIN, **more: Any) -> httpx.Response:
        """What is answered to a token of this scope; None: to nobody in particular."""
        headers = {"authorization": f"Bearer {self.tokens[scope]}"} if scope is not None else {}
        return httpx.request(method, self.url + path, headers=headers, timeout=30, **more)

    def told(self, method: str, path: str, scope: Scope = Scope.ADMIN, **more: Any) -> Any:
        """The same where all is well: what JSON has, None for nothing."""
        answer = self.ask(method, path, scope, **more)
        assert answer.is_success, (answer.status_code, answer.text)
        return answer.json() if answer.content else None

    def refused(
        self, status: int, method: str, path: str, scope: Scope | None = Scope.ADMIN, **more: Any
    ) -> str:
        """Why it is refused, with this status."""
        answer = self.ask(method, path, scope, **more)
        assert answer.status_code == status, (answer.status_code, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
        return str(answer.json()["detail"])
