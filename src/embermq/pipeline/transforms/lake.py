"""From records to rows of the Parquet lake."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

ROOT_BYTES_MAX = 80
"""A longer first level would not fit a directory name once its special characters are written as %XX."""


def lake_rows(records: DataFrame) -> DataFrame:
    """Every field of the record, `payload_json` (the payload when it is JSON), `date` (UTC) and `root`.

    `date` and `root` name the directory. A first level that no directory can be called is named by its hash;
    `topic` holds it as it was.
    """
    fields = [name for name in records.columns if name not in ("root", "body")]
    return records.select(
        *fields,
        payload_json().alias("payload_json"),
        F.date_format("accepted_at", "yyyy-MM-dd").alias("date"),
        directory_root().alias("root"),
    )


def payload_json() -> Column:
    """The payload as text when it is valid UTF-8 and valid JSON, else null.

    Spark's parser stops at the end of the first value: `3 boxes` would be 3. So the text also has to be one element of
    an array, of two and of three: what closes the array itself has the same length in both.
    """
    text = F.try_validate_utf8(F.col("payload").cast("string"))

    def elements(more: str) -> Column:
        return F.json_array_length(F.concat(F.lit("["), text, F.lit(more + "]")))

    is_alone = (elements(",0") == 2) & (elements(",0,0") == 3)
    return F.when(F.try_parse_json(text).isNotNull() & is_alone, text)


def directory_root() -> Column:
    """The first topic level, or `sha256-<hex>` when it is empty or too long for a directory name."""
    root = F.col("root")
    fits = F.octet_length(root).between(1, ROOT_BYTES_MAX)
    return F.when(fits, root).otherwise(F.concat(F.lit("sha256-"), F.sha2(root, 256)))
