"""Every error that Slotwise raises on purpose.

::

    SlotwiseError
    ├── UsageError            a mistake in what the user typed or configured   (exit code 2)
    │   ├── ConfigError       unknown, contradictory or unparsable configuration
    │   └── SizeError         a size, count or core number that cannot be used
    ├── EnvironmentProblem    Java, Spark, port, file or memory is not as needed (exit code 1)
    ├── ClusterError          the master said no, or cannot be reached           (exit code 1)
    ├── StoreError            a record cannot be kept or read                    (exit code 1)
    │   └── StaleLeader       a newer leader has written the record meanwhile
    └── ProtocolError         a frame or message that cannot be understood

The message of each says what is wrong, where, and what to do; it is shown to users as it stands.
"""


class SlotwiseError(Exception):
    """Base of all errors raised on purpose; its text is fit for a user's eyes."""

    exit_code = 1


class UsageError(SlotwiseError):
    """The user's input cannot be used. Nothing was changed."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration key or value is unknown, unparsable or contradicts another."""


class SizeError(UsageError):
    """A memory size, core count or executor count is out of its range or unparsable."""


class EnvironmentProblem(SlotwiseError):
    """This machine lacks something (Java, a free port, a readable file)."""


class ClusterError(SlotwiseError):
    """The cluster refused a call or could not be reached. ``status``: the HTTP status of a refusal."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


class StoreError(SlotwiseError):
    """A record or a file cannot be kept or read; the text names it and the cause. Nothing was changed."""


class StaleLeader(StoreError):
    """The store has the record of a newer leader: whoever wanted to write leads no more."""


class ProtocolError(SlotwiseError):
    """A frame or message is malformed or of a version that is not spoken here."""
