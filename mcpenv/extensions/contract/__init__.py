"""Check the contract of an environment.

With pytest, an environment's own test is a class::

    class TestEcho(EnvironmentContract):
        factory = EchoEnvironment
        examples = {"echo_message": {"message": "hello"}}

Without pytest, it is a call: ``print(check_environment(EchoEnvironment))``. The kit makes some twenty instances and
calls every tool of both modes several times, so give it a world that may be changed. Sync code runs in worker threads
and async code on an event loop, as on a server.
"""

from __future__ import annotations

from .contract import CHECKS
from .findings import ContractViolation, ContractWarning, Finding, Report, Verdict
from .kit import EnvironmentContract, check_environment

__all__ = [
    # Run the checks
    "check_environment",
    "EnvironmentContract",
    "CHECKS",
    # Results
    "Report",
    "Finding",
    "Verdict",
    "ContractViolation",
    "ContractWarning",
]
