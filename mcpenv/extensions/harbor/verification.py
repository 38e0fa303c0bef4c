"""Run the tests of a step, and read the reward that they write."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from mcpenv.errors import VerifierFailed
from mcpenv.redaction import without_known
from mcpenv_client.scores import reaches
from mcpenv_client.types.records import Reward

from .artifacts import collected, put, put_folder
from .box import KILLED_WITHIN_S, TESTS, VERIFIER_LOGS, Box, BoxFailed
from .provider import Boxes
from .steps import ARTIFACTS, Step, value_of

KEPT_OUTPUT = 440
"""Maximum characters of the end of the tests' output that a verdict has."""

_OUTPUT = VERIFIER_LOGS / "test-stdout.txt"
_ROOT = "0"

Verdict = tuple[Reward, list[str]]
"""A reward, and sentences: what is left out or failed, and hints at the reason of a reward below 1."""


async def judged_here(box: Box, step: Step, env: Mapping[str, str], *, goes_on: bool) -> Verdict:
    """Run the tests of a step in the box of the agent, whose processes end.

    Args:
        box: the box.
        step: the step.
        env: the variables of its tests.
        goes_on: True if another step may follow, for which the caller resumes the box.

    Raises:
        VerifierFailed: the tests wrote no reward, or it is not a finite number.
        BoxFailed: the tests could not be run.
    """
    said = await _collect(box, step)
    dropped = await box.begin_verification(step.tests, goes_on=goes_on)
    return await _verdict(box, step, env, said, dropped)


async def judged_apart(
    box: Box, boxes: Boxes, step: Step, env: Mapping[str, str], *, network: bool, goes_on: bool
) -> Verdict:
    """Run the tests of a step in a box of their own, into which only its artifacts are carried over.

    Args:
        box: the box of the agent.
        boxes: the maker of the tests' box.
        step: the step.
        env: the variables of its tests.
        network: True if the tests' box has a network.
        goes_on: False to delete the box of the agent before the tests begin, also if they cannot.

    Raises:
        VerifierFailed: the tests wrote no reward, or it is not a finite number.
        BoxFailed: the tests could not be run.
    """
    found: dict[str, bytes] = {}
    try:
        said = await _collect(box, step)
        for artifact in step.artifacts:
            packed, problem = await collected(box, artifact)
            said += [] if problem is None else [problem]
            if packed is not None:
                found.setdefault(artifact.source, packed)
    finally:
        if not goes_on:
            await box.close()
    try:
        judge = await boxes.box({"agent": network, "verifier": network})
    except BoxFailed as error:
        raise BoxFailed(f"the container of the tests: {error}") from error
    try:
        folders = f"rm -rf -- {VERIFIER_LOGS} && mkdir -p {TESTS} {ARTIFACTS} {VERIFIER_LOGS}"
        done = await judge.run(f"{folders} && chmod 777 {VERIFIER_LOGS}", timeout_s=step.tests_timeout_s, user=_ROOT)
        if done.exit_code:
            raise BoxFailed(f"the container of the tests: {done.reason}")
        for path, packed in found.items():
            await put(judge, path, packed)
        if step.judge is not None and not step.judge.has_tests:
            for folder in step.tests:
                await put_folder(judge, TESTS, folder)
        return await _verdict(judge, step, env, said)
    finally:
        await judge.close()


async def _collect(box: Box, step: Step) -> list[str]:
    """Run the commands of ``[[verifier.collect]]``. As in Harbor, one that fails ends nothing; return a sentence."""
    said = []
    for hook in step.collect:
        user = None if hook.user is None else str(hook.user)
        done = await box.run(hook.command, timeout_s=hook.timeout_sec, user=user)
        if done.exit_code:
            said.append(f"[[verifier.collect]] {hook.command!r} failed: {done.reason}")
    return said


async def _verdict(
    box: Box, step: Step, env: Mapping[str, str], said: Sequence[str], dropped: str | None = None
) -> Verdict:
    timeout_s = step.tests_timeout_s
    # An artifact may be `/logs`, with a reward that the agent has written.
    prepared = f"rm -rf -- {VERIFIER_LOGS}/reward.json {VERIFIER_LOGS}/reward.txt; chmod +x {TESTS}/test.sh"
    await box.run(prepared, timeout_s=timeout_s, user=_ROOT)
    script = f"(exec {TESTS}/test.sh) > {_OUTPUT} 2>&1"
    done = await box.run(script, timeout_s=timeout_s, env=env, user=step.tests_user)
    try:
        if done.timed_out:
            raise VerifierFailed(f"the tests took more than {timeout_s:g} s")
        reward = await _written(box)
    except VerifierFailed as error:
        raise VerifierFailed("; ".join([str(error), *await _hints(box, dropped), *said])) from error
    return reward, [*([] if reaches(reward.value, 1.0) else await _hints(box, dropped)), *said]


async def _written(box: Box) -> Reward:
    for name, read in (("reward.json", _of_json), ("reward.txt", _of_text)):
        try:
            content = await box.read(str(VERIFIER_LOGS / name))
        except FileNotFoundError:
            continue
        return read(b"" if content is None else content)
    raise VerifierFailed(f"the tests wrote neither {VERIFIER_LOGS}/reward.json nor {VERIFIER_LOGS}/reward.txt")


async def _hints(box: Box, dropped: str | None) -> list[str]:
    """Return sentences: the end of the tests' output if there is one, without secrets, and ``dropped``."""
    done = await box.run(f"tail -c {4 * KEPT_OUTPUT} -- {_OUTPUT}", timeout_s=KILLED_WITHIN_S)
    output = without_known(done.stdout.decode("utf-8", "replace"))
    lines = " | ".join(line for line in output.splitlines() if line.strip())
    printed = f"the tests' output ends with: {lines[-KEPT_OUTPUT:]}" if lines else None
    return [each for each in (printed, dropped) if each is not None]


def _of_text(content: bytes) -> Reward:
    try:
        return Reward(float(content))
    except ValueError as error:
        raise VerifierFailed(f"reward.txt has no finite number: {content[:80]!r}") from error


def _of_json(content: bytes) -> Reward:
    """Return the reward in ``reward.json``: the value of ``reward``, or of the only key. All keys are components."""
    try:
        rewards = json.loads(content)
    except ValueError as error:
        raise VerifierFailed(f"reward.json is no JSON: {content[:80]!r}") from error
    if not isinstance(rewards, dict):
        rewards = {"reward": rewards}
    for key, value in rewards.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise VerifierFailed(f"reward.json: {key} is {value!r}, not a finite number")
    return Reward(value_of(rewards, "reward.json"), rewards)
