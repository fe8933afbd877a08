"""What a job says when Spark fails."""

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException

from embermq.pipeline.errors import AuditError, SparkEndedError
from embermq.pipeline.jobs.kept_records import failures_told


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (AnalysisException("[SOME] thing\nat line 2"), r"the messages cannot be read: \[SOME\] thing$"),
        (Py4JError("no answer"), "pipeline.heap_mb"),
    ],
)
def test_a_failure_of_spark_is_told_in_a_sentence(error: Exception, said: str) -> None:
    with pytest.raises(AuditError, match=said), failures_told():
        raise error


def test_what_is_told_already_stays() -> None:
    with pytest.raises(SparkEndedError, match="its memory"), failures_told():
        raise SparkEndedError("its memory was not enough")
