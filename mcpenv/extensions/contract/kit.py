"""Run the checks, by a call or as a class of pytest tests."""

from __future__ import annotations

import inspect
import unittest
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar

from mcpenv.environment import MCPEnvironment
from mcpenv_client.types.actions import Action

from .contract import CHECKS, GROUND, Contract
from .findings import ContractViolation, ContractWarning, Finding, Report, Verdict
from .subject import Subject


def check_environment(
    factory: Callable[[], MCPEnvironment],
    *,
    examples: Mapping[str, Mapping[str, Any]] | None = None,
    actions: Sequence[Action] = (),
    reset_options: Mapping[str, Any] | None = None,
    seed: int = 0,
    deterministic: bool = True,
    block_limit_s: float = 0.5,
    call_timeout_s: float = 30.0,
) -> Report:
    """Run every check on an environment.

    Args:
        factory: the class, or a callable without arguments that returns an instance.
        examples: tool names with arguments that work. Other tools are called with arguments made from their schema.
        actions: own actions to take, after the tools.
        reset_options: options for a ``reset`` that requires some.
        seed: the seed of every reset.
        deterministic: False for worlds in which no two episodes are equal (a live site). That check is then skipped.
        block_limit_s: maximum seconds for which async code may block the event loop.
        call_timeout_s: maximum seconds of each call.

    Raises:
        ContractViolation: if a check failed. The text lists all failures and what to do; ``report`` has the rest.
    """
    subject = Subject(
        factory, examples or {}, actions, reset_options or {}, seed, deterministic, block_limit_s, call_timeout_s
    )
    contract, report = Contract(subject), Report(subject.name)
    for check in CHECKS:
        ground = next((finding for finding in report.of(Verdict.FAILED) if finding.check in GROUND), None)
        if ground is not None:
            report.findings.append(Finding(check, Verdict.SKIPPED, f"not run, because {ground.check} failed"))
        else:
            report.findings.append(contract.find(check))
    failed = report.of(Verdict.FAILED)
    if failed:
        text = "\n".join(f"- {finding.check}: {finding.text}" for finding in failed)
        raise ContractViolation(f"{subject.name} violates its contract:\n{text}", report=report)
    return report


class EnvironmentContract:
    """Run the checks as pytest tests. Subclass it, and set ``factory`` and other arguments of `check_environment`.

    Each check is a test of its name: ``test_constructor``, ``test_reset`` and so on, as in `CHECKS`.
    A warning of the kit is issued as a `ContractWarning`.
    """

    factory: ClassVar[Any]
    examples: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    actions: ClassVar[Sequence[Action]] = ()
    reset_options: ClassVar[Mapping[str, Any]] = {}
    seed: ClassVar[int] = 0
    deterministic: ClassVar[bool] = True
    block_limit_s: ClassVar[float] = 0.5
    call_timeout_s: ClassVar[float] = 30.0

    _contract: ClassVar[Contract]

    def test_constructor(self) -> None:
        """Run `Contract.constructor`. The other tests run the checks of their names."""
        self._check("constructor")

    def test_reset(self) -> None:  # noqa: D102
        self._check("reset")

    def test_state(self) -> None:  # noqa: D102
        self._check("state")

    def test_close(self) -> None:  # noqa: D102
        self._check("close")

    def test_end(self) -> None:  # noqa: D102
        self._check("end")

    def test_names(self) -> None:  # noqa: D102
        self._check("names")

    def test_schemas(self) -> None:  # noqa: D102
        self._check("schemas")

    def test_descriptions(self) -> None:  # noqa: D102
        self._check("descriptions")

    def test_calls(self) -> None:  # noqa: D102
        self._check("calls")

    def test_bad_calls(self) -> None:  # noqa: D102
        self._check("bad_calls")

    def test_rewards(self) -> None:  # noqa: D102
        self._check("rewards")

    def test_tasks(self) -> None:  # noqa: D102
        self._check("tasks")

    def test_verify(self) -> None:  # noqa: D102
        self._check("verify")

    def test_determinism(self) -> None:  # noqa: D102
        self._check("determinism")

    def test_threads(self) -> None:  # noqa: D102
        self._check("threads")

    def test_event_loop(self) -> None:  # noqa: D102
        self._check("event_loop")

    def test_sharing(self) -> None:  # noqa: D102
        self._check("sharing")

    def test_episodes(self) -> None:  # noqa: D102
        self._check("episodes")

    def _check(self, name: str) -> None:
        finding = self._contract_of_class().find(name)
        if finding.verdict is Verdict.FAILED:
            raise ContractViolation(finding.reason, finding.remedy)
        if finding.verdict is Verdict.SKIPPED:
            raise unittest.SkipTest(finding.reason)
        if finding.verdict is Verdict.WARNING:
            warnings.warn(finding.text, ContractWarning, stacklevel=3)

    @classmethod
    def _contract_of_class(cls) -> Contract:
        """Return one contract for all tests of the class, so that checks share their walks."""
        if "_contract" not in cls.__dict__:
            factory = inspect.getattr_static(cls, "factory")  # a plain function must not become a method
            settings = {field.name: getattr(cls, field.name) for field in fields(Subject) if field.name != "factory"}
            made_by = factory.__func__ if isinstance(factory, staticmethod) else factory
            cls._contract = Contract(Subject(made_by, **settings))
        return cls._contract
