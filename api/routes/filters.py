"""Topic filters in requests."""

from http import HTTPStatus

from api.problems import Problem
from mqlake.errors import InvalidTopic
from mqlake.topics import split_shared, validate_topic_filter


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
