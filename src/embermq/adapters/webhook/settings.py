"""Settings of dead-letter alerts; composed by app into the broker's one schema (section `webhook`)."""

from ipaddress import ip_network
from typing import Annotated

from msgspec import Meta, Struct

BACKOFF_S_MAX = 60.0
"""No pause between two attempts is longer."""


class WebhookSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the `alert_webhook` of a queue is called; see [queues](queues.md#alerts-of-dead-letters)."""

    secret_file: str = ""
    """File with the secret that requests are signed with, 16 bytes or more; a line end does not count. Empty =
    `webhook.secret` in the data directory, made with the first alert."""
    allowed_networks: tuple[str, ...] = ()
    """Networks such as `10.1.0.0/16` that may be called though they are not public. Loopback, private, link-local and
    other special addresses are refused otherwise, whatever name leads to them."""
    ca_file: str = ""
    """PEM file with the certificates that those of webhooks must be signed by; empty = those of the system."""
    timeout_s: Annotated[float, Meta(gt=0, le=60)] = 5.0
    """For one request, from the look-up of the name to the status of the answer."""
    attempts_max: Annotated[int, Meta(ge=1, le=20)] = 5
    """Requests for one alert; then it is given up."""
    backoff_s: Annotated[float, Meta(gt=0)] = 1.0
    """Pause before the second attempt; each further one is twice as long, up to a minute."""
    waiting_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_000
    """Alerts that wait for one address; more are dropped."""
    requests_max: Annotated[int, Meta(ge=1, le=100)] = 8
    """Requests at a time, over all addresses; one address gets one at a time."""


def check_settings(settings: WebhookSettings) -> None:
    """Raise ValueError, naming the setting, for what cannot be."""
    for text in settings.allowed_networks:
        try:
            ip_network(text)
        except ValueError:
            raise ValueError(
                f"webhook.allowed_networks: {text[:80]!r} is no network such as 10.1.0.0/16"
            ) from None
    if settings.backoff_s > BACKOFF_S_MAX:
        raise ValueError(
            f"webhook.backoff_s: {settings.backoff_s:g} is more than the longest pause, {BACKOFF_S_MAX:g}"
        )
