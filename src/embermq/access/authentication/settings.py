"""Settings of who may enter. Sections `authentication`, `scram`, `jwt`, `http_hook`."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct

StepName = Literal["certificate", "password", "jwt", "scram", "http", "anonymous"]
Algorithm = Literal[
    "HS256",
    "HS384",
    "HS512",
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
]


class AuthenticationSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which credentials are accepted, and what happens after failures."""

    chain: tuple[StepName, ...] = ("certificate", "password", "scram", "anonymous")
    """Steps that check a client in this order, until one accepts or refuses it: `certificate`, `password`,
    `jwt`, `scram`, `http`, `anonymous`."""
    ban_failures: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """So many wrong credentials from one address (IPv6: one network of 64 bits) within ten minutes ban it for `ban_s`,
    also for clients that are right or connected. Loopback is never banned. 0: nobody is."""
    ban_s: Annotated[int, Meta(ge=1, le=31_536_000)] = 3_600
    """How long such a ban lasts; `embermq bans remove` lifts it."""


class JwtSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens (JSON Web Tokens) that clients send as their password. Files are read again when they change."""

    hmac_secret_file: str = ""
    """File with the secret of `HS...` tokens, of 32 bytes for HS256, 48 for HS384, 64 for HS512 or more; a line end
    behind it does not count."""
    public_key_files: tuple[str, ...] = ()
    """Files with public keys of those who sign tokens: PEM with one RSA, elliptic curve or Ed25519 key, or a JSON Web
    Key Set, whose keys a token names by `kid`."""
    algorithms: tuple[Algorithm, ...] = ("HS256", "RS256", "ES256")
    """Signatures that are accepted, each with a key of its own kind: never `HS...` with a public key, never
    `none`."""
    issuer: str = ""
    """What `iss` must be; empty = anything."""
    audience: str = ""
    """What `aud` must be or hold; empty = tokens that name an audience are refused."""
    require_exp: bool = True
    """Whether a token must end some time. When it does, so does the connection; clocks may differ by 5 s."""
    user_claim: str = "sub"
    """The claim that holds the user name."""
    client_id_claim: str = ""
    """A claim that must be there and equal the client id; empty = a token serves any client id."""
    client_type_claim: str = ""
    """A claim that may say `device` or `application`; empty = none does."""


class HttpHookSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Your own service, asked by `POST` whether a client is accepted; see
    [authentication](authentication.md)."""

    url: str = ""
    """Its address; the scheme `https`, or `http` on this machine or in a network without eavesdroppers."""
    ca_file: str = ""
    """PEM file with the certificates that its certificate must be signed by; empty = those of the system."""
    timeout_ms: Annotated[int, Meta(ge=10, le=60_000)] = 2_000
    """For an answer, including the wait for one of 16 requests at a time; after it the client is refused with 0x88
    (server unavailable)."""
    cache_s: Annotated[float, Meta(ge=0, le=86_400)] = 10.0
    """How long `allow` holds for a client that shows the same again; 0 = it is asked every time."""


def check_settings(
    settings: AuthenticationSettings,
    jwt: JwtSettings,
    hook: HttpHookSettings,
    *,
    allow_anonymous: bool,
) -> None:
    """Raise ValueError, naming the setting, for a chain that cannot be, and for what does nothing."""
    chain = settings.chain
    if not chain:
        raise ValueError("authentication.chain: is empty, so every client would be refused")
    for name in chain:
        if chain.count(name) > 1:
            raise ValueError(f"authentication.chain: {name!r} is named twice")
    if allow_anonymous and "anonymous" not in chain:
        raise ValueError(
            "clients.allow_anonymous: has no effect, authentication.chain is without 'anonymous'"
        )
    _check_jwt(jwt, used="jwt" in chain)
    _check_hook(hook, used="http" in chain)


def _check_jwt(jwt: JwtSettings, *, used: bool) -> None:
    files = {
        "hmac_secret_file": jwt.hmac_secret_file,
        "public_key_files": jwt.public_key_files,
    }
    given = [name for name, value in files.items() if value]
    if used and not given:
        raise ValueError("authentication.chain: 'jwt' needs jwt.hmac_secret_file or jwt.public_key_files")
    if given and not used:
        raise ValueError(f"jwt.{given[0]}: has no effect, authentication.chain is without 'jwt'")
    if not jwt.algorithms:
        raise ValueError("jwt.algorithms: is empty, so every token would be refused")
    if not jwt.user_claim:
        raise ValueError("jwt.user_claim: is empty, so tokens would name no user")


def _check_hook(hook: HttpHookSettings, *, used: bool) -> None:
    if used and not hook.url:
        raise ValueError("authentication.chain: 'http' needs http_hook.url")
    if hook.url and not used:
        raise ValueError("http_hook.url: has no effect, authentication.chain is without 'http'")
    if not hook.url:
        return
    try:
        parts = urlsplit(hook.url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits or any(character.isspace() for character in hook.url):
        raise ValueError("http_hook.url: is not an address with https or http")
    if parts.username is not None or parts.password is not None:
        raise ValueError("http_hook.url: has a user name or password in it, which is not taken from there")
    if hook.ca_file and parts.scheme != "https":
        raise ValueError("http_hook.ca_file: has no effect, http_hook.url is not https")
