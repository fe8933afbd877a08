"""Settings of dead-letter alerts; composed by app into the broker's one schema (section `webhook`)."""

from ipaddress import ip_network

from msgspec import Struct


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


def check_settings(settings: WebhookSettings) -> None:
    """Raise ValueError, naming the setting, for what cannot be."""
    for text in settings.allowed_networks:
        try:
            ip_network(text)
        except ValueError:
            raise ValueError(
                f"webhook.allowed_networks: {text[:80]!r} is no network such as 10.1.0.0/16"
            ) from None
