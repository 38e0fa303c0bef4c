"""Judge the contract and the schemas, by the checks of the contract kit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

from mcpenv.extensions.contract.contract import CHECKS, GROUND
from mcpenv.extensions.contract.findings import Verdict
from mcpenv_client.types.tools import Tool

from .candidate import Candidate
from .judged import Judged, some_of

OF_SCHEMAS = ("names", "schemas", "descriptions")
OF_TASKS = ("tasks", "verify")

NO_TOOLS = "it has no tools"

_TYPING = frozenset({"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const", "properties", "items"})
"""The keywords of which a schema has one if it says a type."""

MAX_LISTING = 64 * 1024
"""Bytes of a listing of tools, above which an author is warned: a model reads it in every episode."""


def judge_contract(candidate: Candidate, into: Judged) -> None:
    """Judge lifecycle, calls, rewards, determinism and behaviour on a server."""
    checks = [check for check in CHECKS if check not in (*OF_SCHEMAS, *OF_TASKS)]
    for check in checks:
        if check not in GROUND and candidate.not_standing is not None:
            into.skipped(check, f"not run: {candidate.not_standing}")
        else:
            find(candidate, check, into)
    into.summary = f"{len(into.of(Verdict.OK))} checks passed, {len(into.of(Verdict.FAILED)) or 'none'} failed"


def judge_schemas(candidate: Candidate, into: Judged) -> None:
    """Judge the names, schemas and descriptions of the tools."""
    if not candidate.stands(into):
        return
    if not candidate.subject.all_tools:
        into.not_applicable("schemas", NO_TOOLS)
        return
    for check in OF_SCHEMAS:
        find(candidate, check, into)
    judge_parameters(candidate.subject.all_tools, into)
    number = len({tool.name for tool in candidate.subject.all_tools})
    into.summary = f"{number} tool{'' if number == 1 else 's'}"


def judge_parameters(tools: Iterable[Tool], into: Judged) -> None:
    """Judge the descriptions of parameters that a model reads, and the length of the listing."""
    listed = {tool.name: tool for tool in tools}
    for tool in listed.values():
        properties = tool.input_schema.get("properties", {}).items()
        untyped = [name for name, own in properties if not isinstance(own, Mapping) or _TYPING.isdisjoint(own)]
        if untyped:
            into.warning(
                "parameters",
                f"no type: {some_of(untyped)}",
                "Annotate each parameter, or give its schema a type, so that a model knows what to pass",
                tool.name,
            )
    into.ok_unless_found("parameters")
    size = sum(len(json.dumps(tool.model_dump(mode="json"))) for tool in listed.values())
    into.facts["listing_bytes"] = size
    if size > MAX_LISTING:
        into.warning(
            "listing",
            f"the tools take {size // 1024} KiB to list, which a model reads in every episode",
            "Shorten descriptions, or offer fewer tools",
        )
    into.ok_unless_found("listing")


def find(candidate: Candidate, check: str, into: Judged) -> None:
    """Run a check of the contract kit."""
    finding = candidate.find(check)
    if check == "calls" and finding.verdict is Verdict.OK and not candidate.subject.all_tools:
        into.not_applicable(check, NO_TOOLS)
        return
    if check == "verify" and finding.verdict is Verdict.OK and not candidate.contract.verified:
        into.not_applicable(check, "neither the class nor one of its first tasks verifies an end")
        return
    if finding.verdict is Verdict.WARNING and check == "calls":
        _judge_not_called(candidate, into)
        return
    # The kit skips a check that does not apply.
    verdict = Verdict.NOT_APPLICABLE if finding.verdict is Verdict.SKIPPED else finding.verdict
    into.findings.append(replace(finding, verdict=verdict))


def _judge_not_called(candidate: Candidate, into: Judged) -> None:
    """Add the tools without a successful call, with arguments generated from their schemas or from oracles."""
    # The part tasks plays oracles.
    tasks = candidate.tasks if candidate.plays_oracles else ()
    by_oracles = {call.tool_name for task in tasks for call in task.oracle or ()}
    notes = {name: note for name, note in candidate.contract.not_called.items() if name not in by_oracles}
    if notes:
        first, note = next(iter(notes.items()))
        into.warning(
            "calls",
            f"no call succeeded, so that no result could be judged ({first}: {note})",
            "Call them in the oracle of a task, or give their parameters examples that work",
            some_of(notes),
        )
    into.ok_unless_found("calls")
