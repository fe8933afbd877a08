"""What a job says when Spark fails."""

import pytest
from pyspark.errors import AnalysisException

from embermq.pipeline.errors import AuditError, SparkEndedError
from embermq.pipeline.jobs.kept_records import failures_told


def test_a_failure_of_spark_is_told_in_a_sentence() -> None:
    with pytest.raises(AuditError, match=r"the messages cannot be read: \[SOME\] thing$"), failures_told():
        raise AnalysisException("[SOME] thing\nat line 2")


def test_what_is_told_already_stays() -> None:
    with pytest.raises(SparkEndedError, match="its memory"), failures_told():
        raise SparkEndedError("its memory was not enough")
