"""Who may speak to Spark's ports: everything that listens asks for a secret.

Other accounts of this machine reach loopback, too. Spark authenticates its own ports, and the JVM's end of py4j. The
end in Python, where the JVM calls what `foreachBatch` was given, is open in PySpark and is closed here.
"""

from pathlib import Path

from py4j.java_gateway import JavaGateway, JavaObject
from pyspark.java_gateway import ensure_callback_server_started

from embermq.pipeline.errors import PipelineSettingsError
from embermq.pipeline.settings import PipelineSettings, is_local, is_standalone

SECRET_BYTES_MIN = 16
_CALLBACK_IDLE_S = 30
"""Py4j's own: a connection that the JVM has not used for so long is closed."""


def authentication_options(settings: PipelineSettings) -> dict[str, str]:
    """Of the session, secret excluded. Spark makes one by itself, in its memory, on a local master, YARN and
    Kubernetes."""
    options = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
    if is_local(settings.master):  # nobody else is to connect, so nobody needs the older handshake
        options["spark.network.crypto.saslFallback"] = "false"
    return options


def cluster_secret(settings: PipelineSettings) -> str:
    """What a standalone master and its workers ask for, "" for other masters. Raises PipelineSettingsError."""
    if not is_standalone(settings.master):
        return ""
    path = settings.spark_secret_file
    try:
        secret = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineSettingsError(f"pipeline.spark_secret_file: cannot read {path!r}: {error}") from error
    if len(secret) < SECRET_BYTES_MIN:
        raise PipelineSettingsError(
            f"pipeline.spark_secret_file: {path!r} has {len(secret)} characters, a secret has at least "
            f"{SECRET_BYTES_MIN}"
        )
    return secret


def authenticate_callbacks(gateway: JavaGateway) -> None:
    """Start the server in Python that the JVM calls, and have it refuse whoever does not know the gateway's token.

    Py4j supports that, but the JVM forgets the token when it is told the server's port (`PythonClient.copyWith`), so it
    gets another client here.
    """
    token = gateway.gateway_parameters.auth_token
    assert token, "PySpark's launcher has made one"
    gateway.callback_server_parameters.auth_token = token
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    java = gateway.jvm
    server = JavaObject("GATEWAY_SERVER", gateway._gateway_client)
    forgetful = server.getCallbackClient()
    client = java.py4j.PythonClient(
        server.getGateway(),
        None,
        forgetful.getPort(),
        forgetful.getAddress(),
        _CALLBACK_IDLE_S,
        java.java.util.concurrent.TimeUnit.SECONDS,
        java.javax.net.SocketFactory.getDefault(),
        server,
        True,
        forgetful.getReadTimeout(),
        token,
    )
    field = java.java.lang.Class.forName("py4j.Gateway").getDeclaredField("cbClient")
    field.setAccessible(True)
    field.set(server.getGateway(), client)
