"""What is shown of the async client is shown of the blocking one, too: by the same tests, with threads that wait."""

from __future__ import annotations

import pytest
import test_client
from in_threads import GenericInThreads, InThreads
from test_client import *  # noqa: F403 - its tests

OF_EVENT_LOOPS = (
    "test_a_cancelled_caller_loses_the_session",
    "test_a_caller_cancelled_before_its_turn_costs_nothing",
    "test_a_client_outlives_its_event_loop_as_a_lost_session",
    "test_two_event_loops_at_once_are_a_mistake_that_is_named",
    "test_a_refusal_that_another_caller_reads_is_raised_by_the_one_whose_send_came_too_late",
    "test_nothing_is_left_open",
    "test_a_client_that_is_dropped_closes_its_socket_and_says_so",  # the threads of these tests keep it a moment longer
    "test_type_parameters_are_found_through_generic_subclasses",
)
"""Those that look at tasks, event loops, or the inside of an async client; for blocking ones see `test_sync`."""

for _name in OF_EVENT_LOOPS:
    del globals()[_name]


@pytest.fixture(autouse=True)
def _blocking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_client, "EnvClient", InThreads)
    monkeypatch.setattr(test_client, "GenericEnvClient", GenericInThreads)
    monkeypatch.setitem(test_client.scripted.__wrapped__.__kwdefaults__, "client", InThreads)  # type: ignore[attr-defined]
