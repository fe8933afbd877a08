"""Where Spark keeps a query's checkpoint: a folder of this machine, or a URL that its Hadoop client can write."""

import shutil
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def fresh_checkpoint(spark: SparkSession, folder: str, query: str) -> str:
    """The place of a query's checkpoint below `folder`, with nothing in it."""
    if "://" not in folder:
        place = Path(folder) / query
        shutil.rmtree(place, ignore_errors=True)
        return str(place)
    url = f"{folder.rstrip('/')}/{query}"
    context = spark.sparkContext
    path: Any = context._jvm.org.apache.hadoop.fs.Path(url)  # type: ignore[union-attr]
    path.getFileSystem(context._jsc.hadoopConfiguration()).delete(path, True)
    return url
