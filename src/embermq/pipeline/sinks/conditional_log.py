"""Commits of Delta in object storage that several drivers write: the storage refuses one whose number is taken.

The JVM gets one class more for it, whose source is beside this module; the compiler is Spark's own, by which it makes
its queries.
"""

from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from embermq.pipeline.errors import LakeError

_CLASS = "embermq.ConditionalLogStore"
OPTIONS = {"spark.delta.logStore.s3a.impl": _CLASS}
"""Of the Spark session."""
_PROBE = "_delta_log/_embermq-"
"""How a name begins that is none of Delta's, which passes it over."""


def load_log_store(spark: SparkSession, folder: Path) -> None:
    """Before the first table is looked at. The class is written into the folder."""
    jvm: Any = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(files(__package__ or "").joinpath("ConditionalLogStore.java").read_text())
    for name, code in compiler.getBytecodes().items():
        file = folder / f"{name.replace('.', '/')}.class"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(code)
    loader.addURL(jvm.java.io.File(str(folder)).toURI().toURL())


def check_storage(spark: SparkSession, place: str) -> None:
    """The table is there. Raises LakeError for storage that lets a driver write its commit over another one's."""
    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    path = jvm.org.apache.hadoop.fs.Path(f"{place}/{_PROBE}{uuid4().hex}")
    store = jvm.embermq.ConditionalLogStore(conf)
    nothing = jvm.java.util.ArrayList()
    store.write(path, nothing.iterator(), False, conf)
    try:
        store.write(path, nothing.iterator(), False, conf)
    except Py4JJavaError as error:
        if error.java_exception.getClass().getSimpleName() == "FileAlreadyExistsException":
            return
        raise
    finally:
        path.getFileSystem(conf).delete(path, False)
    raise LakeError(
        f"{place}: this storage overwrites what must not be there yet (it does not know If-None-Match of a PUT), so "
        "the drivers of several slots would lose one another's commits"
    )
