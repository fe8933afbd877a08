"""The unit by which systemd runs the broker, and what the broker tells systemd (sd_notify(3))."""

from __future__ import annotations

import logging
import os
import re
import socket
from pathlib import Path

from embermq.app.errors import UserError

LOG = logging.getLogger("embermq")
UNIT = "embermq.service"
_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,30}")
_TEMPLATE = """\
[Unit]
Description=EmberMQ, an MQTT broker
Wants=network-online.target
After=network-online.target
# A start without one of its servers fails at once, again and again until that is back.
StartLimitIntervalSec=0

[Service]
Type=notify
# A large store is read before the broker is ready.
TimeoutStartSec=infinity
ExecStart={start}
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=2
# A setting that cannot be is no better the next time.
RestartPreventExitStatus=2
# The broker ends its pipeline itself; what is left after that is killed.
KillMode=mixed
LimitNOFILE=1048576

# A user of this name is taken when there is one; else systemd makes one for as long as the broker runs.
User={user}
DynamicUser=yes
StateDirectory={user}
StateDirectoryMode=0700
UMask=0077

NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome={home}
PrivateTmp=yes
PrivateDevices=yes
PrivateUsers=yes
ProtectHostname=yes
ProtectClock=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectProc=invisible
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


def service_unit(program: Path, config: Path | None, user: str) -> str:
    """For a program, with a file of settings or without one; data goes to /var/lib/USER. Raises UserError for names
    that systemd would not take."""
    if not _NAME.fullmatch(user):
        raise UserError(f"{user!r} is not the name of a system user: small letters, digits, - and _")
    words = [_word(program), "run", "--data-dir", f"/var/lib/{user}"]
    if config is not None:
        words += ["--config", _word(config)]
    is_at_home = program.is_relative_to("/home") or program.is_relative_to("/root")
    return _TEMPLATE.format(start=" ".join(words), user=user, home="read-only" if is_at_home else "yes")


def _word(path: Path) -> str:
    text = str(path)
    if not text.isprintable() or any(sign in text for sign in "\"'\\"):
        raise UserError(
            f"{text!r} cannot stand in a unit of systemd: a quote, a backslash or a control character"
        )
    text = text.replace("%", "%%").replace("$", "$$")
    return f'"{text}"' if " " in text else text


def tell_systemd(state: str) -> None:
    """`READY=1` or `STOPPING=1`, to who has asked for it by NOTIFY_SOCKET; it is no trouble when that is away."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as there:
        try:
            there.connect(address)
            there.sendall(state.encode())
        except OSError as error:
            LOG.warning("systemd is not told %s: %s", state, error.strerror)
