"""`embermq certs`: an authority of one's own, with certificates of servers, clients and nodes of a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from embermq.cli.terminal import group

app = group("Certificates of an own authority: server, client, node.")

Folder = Annotated[
    Path, typer.Option("--folder", metavar="DIRECTORY", help="Where authority and certificates are.")
]
Days = Annotated[int, typer.Option("--days", min=1, max=3_650, help="How long the certificate holds.")]
Replace = Annotated[bool, typer.Option("--replace", help="Make another one in place of one that is there.")]
_FOLDER, _DAYS = Path("embermq-certs"), 825


@app.command("server")
def server(
    hosts: Annotated[list[str], typer.Argument(metavar="HOST...", help="Names and addresses of the broker.")],
    *,
    folder: Folder = _FOLDER,
    days: Days = _DAYS,
    replace: Replace = False,
) -> None:
    """Sign a certificate for the broker. The authority is made the first time."""
    from embermq.tools.certificates import Authority

    authority = Authority(folder.absolute())
    certificate, key = authority.server(hosts, days=days, replace=replace)
    print("[tls]")
    for name, path in {"cert": certificate, "key": key, "ca": authority.certificate_file}.items():
        print(f"{name} = {json.dumps(str(path))}")
    print('client_certificates = "optional"\n\n[listeners]\nmqtts = "0.0.0.0:8883"')
    print(
        "\n# clients, with an account (embermq users add NAME) or with what embermq certs client NAME prints:"
    )
    print(
        f"# mosquitto_sub -h {hosts[0]} -p 8883 --cafile {authority.certificate_file} -u NAME -P PASSWORD -t '#'"
    )


@app.command("client")
def client(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The user name that the certificate proves.")],
    *,
    folder: Folder = _FOLDER,
    days: Days = _DAYS,
    replace: Replace = False,
) -> None:
    """Sign a certificate for a client. The authority is made the first time."""
    from embermq.tools.certificates import Authority

    authority = Authority(folder.absolute())
    certificate, key = authority.client(name, days=days, replace=replace)
    print(f"--cafile {authority.certificate_file} --cert {certificate} --key {key}")


@app.command("node")
def node(
    hosts: Annotated[list[str], typer.Argument(metavar="HOST...", help="What other nodes call this one by.")],
    *,
    folder: Folder = Path("embermq-nodes"),
    days: Days = _DAYS,
    replace: Replace = False,
) -> None:
    """Sign a certificate for a node of a cluster. The authority is made the first time, for nodes alone."""
    from embermq.tools.certificates import Authority

    authority = Authority(folder.absolute())
    certificate = authority.node(hosts, days=days, replace=replace)
    print("[cluster]")
    for name, path in {"cert": certificate, "ca": authority.certificate_file}.items():
        print(f"{name} = {json.dumps(str(path))}")
