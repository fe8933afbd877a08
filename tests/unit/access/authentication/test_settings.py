"""Chains that cannot be are refused by name."""

from __future__ import annotations

import pytest

from embermq.app.config import load_configuration
from embermq.app.errors import ConfigError


def problem(*assignments: str) -> str:
    with pytest.raises(ConfigError) as raised:
        load_configuration(assignments=assignments)
    return str(raised.value)


@pytest.mark.parametrize(
    ("assignments", "told"),
    [
        (
            ["authentication.chain="],
            "authentication.chain: is empty, so every client would be refused (from --set)",
        ),
        (
            ["authentication.chain=password,password"],
            "authentication.chain: 'password' is named twice (from --set)",
        ),
        (["authentication.chain=password,jwd"], "authentication.chain: 'jwd' is not one of"),
        (["authentication.chain=jwt"], "authentication.chain: 'jwt' needs jwt.hmac_secret_file"),
        (["authentication.chain=http"], "authentication.chain: 'http' needs http_hook.url"),
        (
            ["jwt.public_key_files=x"],
            "jwt.public_key_files: has no effect, authentication.chain is without 'jwt'",
        ),
        (["http_hook.url=http://h/"], "http_hook.url: has no effect, authentication.chain is without 'http'"),
        (
            ["authentication.chain=password", "clients.allow_anonymous=true"],
            "clients.allow_anonymous: has no effect, authentication.chain is without 'anonymous'",
        ),
        (
            ["authentication.chain=jwt", "jwt.public_key_files=x", "jwt.algorithms="],
            "jwt.algorithms: is empty",
        ),
        (
            ["authentication.chain=jwt", "jwt.public_key_files=x", "jwt.algorithms=none"],
            "'none' is not one of ES256",
        ),
        (
            ["authentication.chain=jwt", "jwt.public_key_files=x", "jwt.user_claim="],
            "jwt.user_claim: is empty",
        ),
        (["authentication.chain=http", "http_hook.url=hook"], "http_hook.url: is not an address"),
        (["authentication.chain=http", "http_hook.url=ftp://h/"], "http_hook.url: is not an address"),
        (["authentication.chain=http", "http_hook.url=http://h:x/"], "http_hook.url: is not an address"),
        (["authentication.chain=http", "http_hook.url=http://[::1/"], "http_hook.url: is not an address"),
        (["authentication.chain=http", "http_hook.url=http://h/a b"], "http_hook.url: is not an address"),
        (
            ["authentication.chain=http", "http_hook.url=http://h/", "http_hook.ca_file=x"],
            "http_hook.ca_file: has no effect, http_hook.url is not https",
        ),
    ],
)
def test_what_cannot_be_is_named(assignments: list[str], told: str) -> None:
    assert told in problem(*assignments)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    told = problem("authentication.chain=http", "http_hook.url=https://ann:s3cret@h/")
    assert "http_hook.url: has a user name or password in it" in told
    assert "s3cret" not in told


def test_the_chain_may_be_in_any_order() -> None:
    settings = load_configuration(assignments=["authentication.chain=anonymous,password"]).settings
    assert settings.authentication.chain == ("anonymous", "password")
