"""Topic filters in requests: whether they are valid, and within the caller's rights."""

from http import HTTPStatus

from api.access.callers import Caller
from api.web.problems import Problem
from mqlake.errors import InvalidTopic
from mqlake.topics.names import split_shared, validate_topic_filter


def check_filter(topic_filter: str) -> None:
    """Accept a topic filter of which nothing is shared.

    Raises:
        Problem: It is none, or a shared one.
    """
    try:
        validate_topic_filter(topic_filter)
    except InvalidTopic as exc:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(exc)) from exc
    if split_shared(topic_filter).share_name:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY, "a filter here is not one of a shared subscription"
        )


def check_rights(caller: Caller, topic_filter: str | None) -> None:
    """Let a caller through who may have all topics that a filter, or topic name, matches.

    Args:
        caller: Caller of the request.
        topic_filter: A valid one; None: all topics.

    Raises:
        Problem: 403.
    """
    if topic_filter is None:
        if caller.topic_filters is None:
            return
        raise Problem(
            HTTPStatus.FORBIDDEN, f"{caller.name} is for some topics alone: name a topic_filter"
        )
    if not caller.may_have(topic_filter):
        raise Problem(HTTPStatus.FORBIDDEN, f"{caller.name} has no right to {topic_filter!r}")
