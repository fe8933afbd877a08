"""Options of both commands: which broker, as whom, over TLS or not. Their letters are those of Mosquitto's programs."""

from __future__ import annotations

import asyncio
import os
import secrets
import ssl
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from embermq_client.client import Client
from embermq_client.errors import ClientError
from embermq_client.link import Options

CONTEXT_SETTINGS = {"help_option_names": ["--help"]}
"""`-h` is the host, as it is with Mosquitto's programs."""
PASSWORD_VARIABLE = "MQTT_PASSWORD"
PORT, PORT_OF_TLS = 1883, 8883
KEEPALIVE_S, CONNECT_TIMEOUT_S = 30, 10.0

Host = Annotated[str, typer.Option("-h", "--host", metavar="HOST", help="The broker.")]
Port = Annotated[
    int | None, typer.Option("-p", "--port", min=1, max=65_535, help="Its port; else 1883, over TLS 8883.")
]
ClientId = Annotated[str | None, typer.Option("-i", "--id", metavar="ID", help="Client id; else a new one.")]
Username = Annotated[str | None, typer.Option("-u", "--username", metavar="NAME", help="User name.")]
Password = Annotated[
    str | None,
    typer.Option(
        "-P",
        "--password",
        metavar="TEXT",
        help=f"Password. Others on this machine see it: rather --password-file, or {PASSWORD_VARIABLE}.",
    ),
]
PasswordFile = Annotated[
    Path | None, typer.Option("--password-file", metavar="FILE", help="A file whose first line it is.")
]
Tls = Annotated[bool, typer.Option("--tls", help="Over TLS, with the authorities that this machine trusts.")]
CaFile = Annotated[
    Path | None, typer.Option("--cafile", metavar="FILE", help="Over TLS, with this authority.")
]
Certificate = Annotated[
    Path | None, typer.Option("--cert", metavar="FILE", help="Over TLS, with a certificate of the client.")
]
Key = Annotated[
    Path | None, typer.Option("--key", metavar="FILE", help="The private key, when --cert has none.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """What the options say."""

    host: str
    port: int | None
    client_id: str | None
    username: str | None
    password: str | None
    password_file: Path | None
    tls: bool
    cafile: Path | None
    cert: Path | None
    key: Path | None

    def client(self) -> Client:
        """Not connected yet. Raises BadParameter, OSError."""
        options = self.options()
        return Client(
            options.host,
            options.port,
            client_id=options.client_id,
            username=options.username,
            password=options.password,
            tls=options.tls,
        )

    def options(self) -> Options:
        """The same for a connection of another kind."""
        trusted = self._trusted()
        password = self._password()
        if password is not None and self.username is None:
            raise typer.BadParameter("a password needs a user name: -u NAME")
        return Options(
            host=self.host,
            port=self.port or (PORT if trusted is None else PORT_OF_TLS),
            client_id=self.client_id or f"embermq-{secrets.token_hex(6)}",
            username=self.username,
            password=password,
            tls=trusted,
            keepalive_s=KEEPALIVE_S,
            connect_timeout_s=CONNECT_TIMEOUT_S,
        )

    def _password(self) -> str | None:
        if self.password_file is not None:
            if self.password is not None:
                raise typer.BadParameter("--password and --password-file: one of them")
            return self.password_file.read_text("utf-8-sig").partition("\n")[0].rstrip("\r")
        if self.password is None and self.username is not None:
            return os.environ.get(PASSWORD_VARIABLE)
        return self.password

    def _trusted(self) -> ssl.SSLContext | None:
        if not (self.tls or self.cafile or self.cert):
            if self.key is not None:
                raise typer.BadParameter("--key goes with --cert")
            return None
        for path in (self.cafile, self.cert, self.key):
            if path is not None:
                path.read_bytes()  # ssl says that a file is not there without its name
        try:
            trusted = ssl.create_default_context(cafile=self.cafile)
            if self.cert is not None:
                trusted.load_cert_chain(self.cert, self.key)
        except ssl.SSLError as error:
            given = ", ".join(str(path) for path in (self.cafile, self.cert, self.key) if path is not None)
            raise typer.BadParameter(f"{given}: {error.reason or error}") from None
        return trusted


def carry_out(work: Coroutine[Any, Any, None]) -> None:
    """Run it to its end. What the broker or the network refuses is one line on standard error, and exit code 1; what
    cannot be asked for, exit code 2."""
    try:
        asyncio.run(work)
    except ClientError as error:
        print(f"embermq: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def pairs(given: list[str] | None) -> tuple[tuple[str, str], ...]:
    """User properties that were typed as NAME=VALUE. Raises BadParameter."""
    found = []
    for each in given or ():
        name, separator, value = each.partition("=")
        if not separator:
            raise typer.BadParameter(f"{each!r} is no user property: NAME=VALUE")
        found.append((name, value))
    return tuple(found)
