"""TLS of a listener: its context from files, and who a client's certificate says it is."""

import os
import ssl
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from embermq.edge.listener_settings import Listener
from embermq.edge.settings import TlsSettings

PROTOCOLS = {
    "mqtts": ("mqtt",),
    "wss": ("http/1.1",),
    "https": ("http/1.1",),
    "grpcs": ("h2",),
    "node": ("embermq-node",),
}
"""What is agreed on by ALPN."""
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
SHORT_NAMES = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
"""Attribute types that RFC 4514 (3) has a short name for; others are written out."""
OnFailure = Callable[[str, bool], None]
"""Told why a handshake came to nothing, and whether the client is being sent an alert that says so: then the connection
is left open for that, until the client closes it or the time for handshakes is over."""
ON_FAILURE: ContextVar[OnFailure] = ContextVar("on_failure")
"""To be set where connections are handed to the event loop with a context of `server_context`."""
_QUOTED = frozenset('\\,+"<>;=')


class TlsFileError(ValueError):
    """A file that `name`, a key of `TlsSettings`, points to cannot be used."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


def context_of(listener: Listener) -> ssl.SSLContext | None:
    """TLS as the files of a listener are now; None where it is not spoken. Raises TlsFileError."""
    return server_context(listener.tls, PROTOCOLS[listener.kind]) if listener.tls is not None else None


def server_context(settings: TlsSettings, protocols: tuple[str, ...]) -> ssl.SSLContext:
    """A context from the files as they are now. `ON_FAILURE` is told why a handshake came to nothing.

    A context is never changed once it is used: another set of files is another context, with other session tickets, so
    that nobody resumes past a revocation. Raises TlsFileError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[settings.min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(list(protocols))
    _load_certificate(context, settings)
    if settings.client_certificates != "off":
        required = settings.client_certificates == "required"
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        _load_authorities(context, settings)
    context.sslobject_class = _Handshake
    return context


def node_context(settings: TlsSettings) -> ssl.SSLContext:
    """For calls to other nodes of a cluster: they have to show a certificate that `ca` has signed, for the name or
    address that is called, and are shown this one's. Raises TlsFileError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = VERSIONS[settings.min_version]
    context.set_alpn_protocols(list(PROTOCOLS["node"]))
    _load_certificate(context, settings)
    _load_authorities(context, settings)
    return context


def _load_certificate(context: ssl.SSLContext, settings: TlsSettings) -> None:
    _readable("cert", settings.cert)
    if settings.key:
        _readable("key", settings.key)
    try:
        # Without an answer OpenSSL would ask for the passphrase at the terminal.
        context.load_cert_chain(settings.cert, settings.key or None, password=_no_passphrase)
    except _PassphraseAsked:
        raise TlsFileError("key" if settings.key else "cert", "the key has a passphrase") from None
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None)
        if reason == "KEY_VALUES_MISMATCH":
            name, what = ("key", "") if settings.key else ("cert", "the key in it ")
            raise TlsFileError(
                name, f"{what}does not belong to the certificate in {settings.cert}"
            ) from error
        raise TlsFileError(
            "cert", f"no certificate and key in PEM can be read ({reason or error})"
        ) from error


def _load_authorities(context: ssl.SSLContext, settings: TlsSettings) -> None:
    for name, path, kind in (("ca", settings.ca, "x509_ca"), ("crl", settings.crl, "crl")):
        if not path:
            continue
        _readable(name, path)
        try:
            context.load_verify_locations(path)
        except (ssl.SSLError, OSError) as error:
            raise TlsFileError(name, f"cannot be used ({getattr(error, 'reason', None) or error})") from error
        if not context.cert_store_stats()[kind]:
            wanted = "certificate of an authority" if name == "ca" else "certificate revocation list"
            raise TlsFileError(name, f"there is no {wanted} in {path}")
    if settings.crl:
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _readable(name: str, path: str) -> None:
    """OpenSSL does not say which file it could not open."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise TlsFileError(name, f"cannot read {path}: {error.strerror}") from error


class _PassphraseAsked(Exception):
    pass


def _no_passphrase() -> bytes:
    raise _PassphraseAsked


class _Handshake(ssl.SSLObject):
    """Tells why a handshake failed, and lets the client know.

    OpenSSL leaves an alert for the client (RFC 8446, 6.2), but event loops close the connection at the error without
    writing it. So they are told that the handshake wants more bytes: then they write what is there. What the
    client sends until it is gone is thrown away: unread, it would make the system drop the alert.
    """

    @classmethod
    def _create(cls, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **options: Any) -> Any:
        made = super()._create(incoming, outgoing, *args, **options)  # type: ignore[misc]
        made._incoming, made._outgoing = incoming, outgoing
        made._on_failure = ON_FAILURE.get()
        made._failure = None
        return made

    _incoming: ssl.MemoryBIO
    _outgoing: ssl.MemoryBIO
    _on_failure: OnFailure
    _failure: ssl.SSLError | None

    def do_handshake(self) -> None:
        if self._failure is None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                self._failure = error
                alerted = self._outgoing.pending > 0
                text = getattr(error, "verify_message", None) or error.reason or str(error)
                self._on_failure(text, alerted)
                if not alerted:
                    raise
            else:
                return
        self._incoming.read()
        raise ssl.SSLWantReadError


Name = tuple[tuple[tuple[str, str], ...], ...]


def identity_of(certificate: object, how: str) -> str | None:
    """The user name in a verified certificate, as `SSLObject.getpeercert` shows it; None when it proves none.

    `how` is `cn`, `subject` (RFC 4514, most specific part first) or `off`. A name that cannot be shown, and one of two
    common names, is none.
    """
    if how == "off" or not isinstance(certificate, dict):
        return None
    subject: Name = certificate.get("subject", ())
    if how == "cn":
        names = [value for part in subject for kind, value in part if kind == "commonName"]
        name = names[0] if len(names) == 1 else ""
    else:
        name = ",".join("+".join(_attribute(*pair) for pair in part) for part in reversed(subject))
    return name if name and name.isprintable() else None


def _attribute(kind: str, value: str) -> str:
    text = "".join("\\" + character if character in _QUOTED else character for character in value)
    if text.startswith(("#", " ")):
        text = "\\" + text
    if text.endswith(" ") and len(text) > 1:
        text = text[:-1] + "\\ "
    return f"{SHORT_NAMES.get(kind, kind)}={text}"
