"""Which servers the settings lead to: their URLs, and passwords that may be in files."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from embermq.adapters.etcd import address as etcd
from embermq.adapters.etcd.address import EtcdAddress
from embermq.adapters.kafka import address as kafka
from embermq.adapters.kafka.address import KafkaAddress
from embermq.adapters.redis import address as redis
from embermq.adapters.redis.address import RedisAddress
from embermq.app.errors import StartError
from embermq.ports.store_address import StoreAddress

Address = TypeVar("Address", bound=StoreAddress)


def kafka_address(url: str) -> KafkaAddress:
    """Raises ValueError for a URL that cannot be, StartError for a password file that cannot be read."""
    return _with_password(kafka.parse_address(url), "stores.log")


def redis_address(url: str) -> RedisAddress:
    """Raises ValueError for a URL that cannot be, StartError for a password file that cannot be read."""
    return _with_password(redis.parse_address(url), "stores.session")


def etcd_address(url: str) -> EtcdAddress:
    """Raises ValueError for a URL that cannot be, StartError for a password file that cannot be read."""
    return _with_password(etcd.parse_address(url), "cluster.etcd")


def cluster_name(etcd_url: str) -> str:
    """The cluster that `cluster.etcd` means, "" for none. Raises ValueError for a URL that cannot be."""
    return etcd.parse_address(etcd_url).name if etcd_url else ""


def _with_password(address: Address, setting: str) -> Address:
    if not address.password_file:
        return address
    return replace(address, password=_password(setting, address.password_file))


def _password(setting: str, path: str) -> str:
    """What the file says, without a line end. Raises StartError, naming the setting, never what the file says."""
    try:
        password = Path(path).read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise StartError(f"{setting}: password_file {path!r}: {reason}") from None
    if not password:
        raise StartError(f"{setting}: password_file {path!r}: is empty")
    return password
