"""What can go wrong in the pipeline, by whose fault."""


class PipelineError(Exception):
    """Root of the room's errors."""


class PipelineSettingsError(PipelineError, ValueError):
    """The user's fault: a setting that this profile cannot have. Names the setting and its value."""


class DriverLockError(PipelineError):
    """The user's fault: two pipelines on one data directory or log. Says which process runs the other."""


class JavaNotFoundError(PipelineError):
    """The world's fault: no Java runtime that Spark can use. Says where it looked."""


class SparkEndedError(PipelineError):
    """The world's fault: a job's JVM does not start, or ends before the job does. Says what it said."""


class LogBehindProgressError(PipelineError):
    """The world's fault: the message log ends before a position that a sink has already written."""


class OtherVersionError(PipelineError):
    """The world's fault: a sink's file is of a version that this EmberMQ does not open. Says which."""


class MessageServerError(PipelineError):
    """The world's fault: the server of the message store does not answer, or refuses. Says which, without password."""


class JarsError(PipelineError):
    """The world's fault: jars that could not be fetched, or a folder that they could not be put into. Says which."""


class RepositoryError(JarsError):
    """The user's fault: no repository can have that URL. Without it, since it may hold a password."""


class KafkaLogError(PipelineError):
    """The world's fault: the message log in Kafka does not answer, is not there, or refuses. Says what was asked."""


class LakeError(PipelineError):
    """The world's fault: the lake cannot be written now. Says where it is, and what is in the way."""


class RedriveError(PipelineError):
    """The world's fault: dead letters that cannot be read. Those that are not put back stay dead letters."""


class ReplayError(PipelineError):
    """The world's fault: messages that cannot be read again, or put where they are to go. Says how far it came."""


class FilterError(PipelineError):
    """The user's fault: a filter over dead letters that means nothing. Names the column, or what Spark says."""


class BrokerAway(PipelineError):
    """The world's fault: the broker does not answer. What it was asked for may be done all the same."""


class SourceOptionError(PipelineError, ValueError):
    """The user's fault: an option of the public source that cannot be. Names the option and its value."""


class AuditError(PipelineError):
    """The world's fault: what is to be audited cannot be read. Says what."""


class RuleRefused(PipelineError):
    """The user's fault: a rule whose SQL says what it cannot, or may not. Says what."""


class RuleError(PipelineError):
    """The world's fault, or the data's: a rule that fails while it reads messages. Says what Spark said."""


class RuleStuck(RuleError):
    """The data's fault: a rule that does not end, and that Spark cannot end. Says how long it was waited for."""
