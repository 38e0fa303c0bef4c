"""Write task directories of Harbor in several steps, and with a separate verifier, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harbor_tasks import CONFIG, harbor_task

STEPS = """
multi_step_reward_strategy = "{strategy}"
[environment]
network_mode = "no-network"
[[steps]]
name = "plan"
{first}
[[steps]]
name = "build"
[steps.agent]
timeout_sec = 60.0
[steps.verifier.env]
WANTED = "built"
"""

_TEST = """#!/bin/bash
. /tests/common.sh
"""

FILES: Mapping[str, str | None] = {
    "instruction.md": None,
    "tests/test.sh": None,
    "solution/solve.sh": None,
    "environment/Dockerfile": "FROM {image}\nWORKDIR /app\n",
    "tests/common.sh": 'reward() { echo "$1" > /logs/verifier/reward.txt; }\n',
    "steps/plan/instruction.md": "# canary\nWrite a plan to plan.txt.\n",
    "steps/plan/tests/test.sh": _TEST
    + 'echo secret > /app/left-by-tests; [ "$(cat plan.txt)" = "a plan" ] && reward 1 || reward 0\n',
    "steps/plan/solution/solve.sh": "#!/bin/bash\necho a plan > plan.txt\necho 1 > /etc/of-the-agent\n",
    "steps/build/instruction.md": "Build what is planned, into built.txt.\n",
    "steps/build/workdir/setup.sh": "#!/bin/bash\ncp given.txt set-up.txt\n",
    "steps/build/workdir/given.txt": "given\n",
    "steps/build/tests/test.sh": _TEST + '[ "$(cat built.txt)" = "$WANTED given" ] && reward 1 || reward 0\n',
    "steps/build/solution/solve.sh": "#!/bin/bash\n[ -f plan.txt -a -f /etc/of-the-agent ] && "
    'echo "built $(cat set-up.txt)" > built.txt\n',
}


def stepped_task(
    folder: Path,
    files: Mapping[str, str | None] | None = None,
    *,
    strategy: str = "mean",
    first: str = "",
    image: str = "debian:12",
) -> Path:
    """Write a task of the steps "plan" and "build", and return its folder.

    Args:
        files: contents by path, instead of its own; None to leave a file out.
        strategy: how its reward is made.
        first: more keys of its first step.
        image: the image of its container.
    """
    contents = {**FILES, **(files or {})}
    contents = {name: text and text.replace("{image}", image) for name, text in contents.items()}
    return harbor_task(folder, contents, config=STEPS.format(strategy=strategy, first=first))


SEPARATE = (
    CONFIG
    + """
[verifier.environment]
network_mode = "no-network"
[verifier.environment.env]
OF_THE_JUDGE = "yes"
"""
)

SEPARATE_FILES: Mapping[str, str | None] = {
    "environment/Dockerfile": "FROM {image}\nWORKDIR /app\n",
    "tests/Dockerfile": "FROM {image}\nWORKDIR /judged\nCOPY . /tests\nRUN echo expected > /judged/expected.txt\n",
    "tests/test.sh": "#!/bin/bash\n"
    "[ -e /app/not-an-artifact ] && echo 0.5 > /logs/verifier/reward.txt && exit\n"
    '[ "$OF_THE_JUDGE" = yes ] && cmp expected.txt /app/out/answer.txt && cmp expected.txt /logs/artifacts/a.txt '
    "&& echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n",
    "solution/solve.sh": "#!/bin/bash\nmkdir out; echo expected > out/answer.txt\n"
    "cp out/answer.txt /logs/artifacts/a.txt; touch /app/not-an-artifact out/left.log\n",
}


def separate_task(
    folder: Path, files: Mapping[str, str | None] | None = None, *, image: str = "debian:12", more: str = ""
) -> Path:
    """Write a task whose tests run in a container of their own, and return its folder."""
    contents = {**SEPARATE_FILES, **(files or {})}
    contents = {name: text and text.replace("{image}", image) for name, text in contents.items()}
    artifacts = 'artifacts = [{source = "/app/out", exclude = ["*.log"]}]\n'
    return harbor_task(folder, contents, config=artifacts + SEPARATE + more)
