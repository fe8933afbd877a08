"""TLS between the nodes of a cluster: both sides show a certificate of the cluster's own authority."""

from __future__ import annotations

import ssl

from embermq.edge.listener_settings import Listener
from embermq.edge.settings import Address, OwnSettings, TlsSettings
from embermq.edge.tls import node_context


class NodeTls:
    """Of this node, by files that are read at the start and again by `reload`."""

    def __init__(self, cert: str, ca: str) -> None:
        """`cert` has the key too. Raises TlsFileError."""
        self.settings = TlsSettings(cert=cert, ca=ca, min_version="1.3", client_certificates="required")
        self.calls: ssl.SSLContext
        """For connections to other nodes from now on."""
        self.reload()

    def reload(self) -> None:
        """Raises TlsFileError; then all stays as it was."""
        self.calls = node_context(self.settings)


def node_listener(address: Address, tls: NodeTls | None) -> Listener:
    """Where other nodes come in."""
    settings = tls.settings if tls is not None else None
    return Listener("node", address, OwnSettings(), settings, None, "cluster", frozenset(("cert", "ca")))
