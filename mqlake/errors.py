"""The root of every error mqlake raises on purpose; a layer's own errors derive from it.

Each layer translates a foreign error once (`raise … from exc`) into one of these; messages are
lower case and say the expected and the actual value.
"""


class MqlakeError(Exception):
    """Base of all errors of this project."""


class InvalidTopic(MqlakeError):  # noqa: N818 - it names the thing refused, as the specification does
    """A topic name or topic filter that the specification does not allow.

    Attributes:
        clause: The normative statement broken, for example `MQTT5-4.7.1-1`.
    """

    def __init__(self, message: str, *, clause: str) -> None:
        super().__init__(message)
        self.clause = clause


class InvalidRecord(MqlakeError):  # noqa: N818
    """A log record whose key, value or headers do not follow `docs/records.md`."""


class NewerRecord(InvalidRecord):
    """A log record in a version that only a later release reads: never to be skipped for good.

    A reader that keeps a state of such records stops, and goes on at the same position in a later
    release.
    """


class SettingsError(MqlakeError):
    """A setting that is unknown, missing or out of range; the message names its key."""


class LogError(MqlakeError):
    """The log did not take or give a record.

    Attributes:
        definite: True when the record is certainly not in the log, False when it may be.
        passing: Whether the log may take the same record later, if it is definite.
        of_batch: Whether it is that this record, or another one of its batch, is too large or
            otherwise none that the log takes.
    """

    def __init__(
        self, message: str, *, definite: bool, passing: bool = False, of_batch: bool = False
    ) -> None:
        super().__init__(message)
        self.definite = definite
        self.passing = passing
        self.of_batch = of_batch


class OffsetGone(LogError):  # noqa: N818 - it names what is missing
    """The log does not have the record any more, or not again, that a reader comes to next."""

    def __init__(self, message: str) -> None:
        super().__init__(message, definite=False)


class BatchNotTaken(MqlakeError):  # noqa: N818 - says what happened
    """A batch of the log was taken by half: only a reader that goes back before it can go on."""


class OperationalError(MqlakeError):
    """The machine or the data directory is not fit to run; the message says what to do."""
