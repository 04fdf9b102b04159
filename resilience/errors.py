"""The errors of the tool; each names the thing at fault, so that its text is enough to act on."""


class ResilienceError(Exception):
    """The root of all errors of this package."""


class HistoryError(ResilienceError):
    """A file is not a history, or of a version that this program does not know."""


class ScenarioError(ResilienceError):
    """A scenario, a target or a schedule says something that is not known."""


class TargetError(ResilienceError):
    """A part of the target could not be started, stopped or reached."""


class ConnectRefused(ResilienceError):  # noqa: N818 - an answer of the broker, as the protocol has it
    """The broker answered CONNECT with a reason code other than success."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the broker refused the connection with code 0x{code:02x}")
        self.code = code
