"""The states of a session: which follow which."""

import pytest

from ingest.session.states import IN_FORCE, OVER, ROUTED, TRANSITIONS, SessionState, step


def test_every_state_is_in_the_table_and_can_be_reached() -> None:
    reached = {SessionState.CONNECTING}
    while True:
        further = {to for state in reached for to in TRANSITIONS[state]} | reached
        if further == reached:
            break
        reached = further
    assert reached == set(TRANSITIONS) == set(SessionState)


def test_nothing_follows_what_is_over_and_all_else_ends() -> None:
    for state, following in TRANSITIONS.items():
        assert (not following) is (state in OVER)
        assert state is SessionState.CONNECTING or state in OVER or following >= OVER


def test_what_is_in_force_is_routed_and_nobody_is_live_before_he_is_saved() -> None:
    assert IN_FORCE < ROUTED
    before_live = {state for state, to in TRANSITIONS.items() if SessionState.LIVE in to}
    assert before_live == {SessionState.SAVED, SessionState.CATCHING_UP}
    assert {state for state, to in TRANSITIONS.items() if SessionState.SAVED in to} == {
        SessionState.CLAIMED
    }


@pytest.mark.parametrize("state", SessionState)
@pytest.mark.parametrize("to", SessionState)
def test_a_step_that_is_not_in_the_table_fails(state: SessionState, to: SessionState) -> None:
    if to in TRANSITIONS[state]:
        assert step(state, to) is to
    else:
        with pytest.raises(AssertionError, match=f"{state.name} cannot be {to.name}"):
            step(state, to)
