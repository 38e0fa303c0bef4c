"""The command ``mcpenv eval``: evaluate an agent on a target, or compare two evaluations."""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Group, Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from mcpenv.cli.commands import FORMAT
from mcpenv.cli.output import Page, note, number_of, print_json, print_table, printable, quiet_logs, report
from mcpenv.cli.tokens import CONTROL_TOKEN, Secret, read_text, read_token
from mcpenv.cli.tool_arguments import json_object
from mcpenv.errors import ConfigurationError
from mcpenv.extensions.model_proxy.upstream import Upstream
from mcpenv.targets.place import is_url
from mcpenv_client.scores import reaches

from .agent import Agent
from .evaluation import NO_CALLS, Evaluated, Progress, evaluate
from .isolation import NOT_ISOLATED, Choice
from .model_agent import DEFAULT_KEY, DEFAULT_URL, ModelAgent
from .program_agent import ProgramAgent
from .results import Failure
from .run_directory import AGENTS
from .run_page import write_report
from .run_tables import LABELS, label_row
from .summary import Estimate, LabelSummary, Summary

FAILED = 1

_LABELS_SHOWN = 10
"""Maximum labels of one kind that are printed for people."""

_AGENT = Group("Agent", help="Choose either a model or a program.", sort_key=10)
_EPISODES = Group("Episodes", sort_key=11)
_RESULTS = Group("Results", sort_key=12)

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
Paths = Annotated[list[Path] | None, Parameter(negative=())]

_FOR_PROGRAMS = {"workspace", "isolation", "hide", "show"}
_FOR_ENDPOINTS = {"base_url", "api_key_env", "request_fields"}


@Parameter(name="*", group=_AGENT)
@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """The options that choose the agent.

    Attributes:
        model: Name of a model at an endpoint with OpenAI's chat completions API.
        base_url: URL of that endpoint; /chat/completions is added. Default: OPENAI_BASE_URL, or
            https://api.openai.com/v1. With --agent: URL of the endpoint of the program's model, to record its requests.
            The program finds the recording proxy by OPENAI_BASE_URL, ANTHROPIC_BASE_URL, MCPENV_MODEL_URL, or
            {model_url} in its command.
        api_key_env: Environment variable with the endpoint's key. Default: OPENAI_API_KEY, if it is set. With --agent
            and --base-url: the program gets a placeholder instead. Default there: the program uses its own key.
        temperature: Sampling temperature. Default: the endpoint's.
        max_tokens: Maximum tokens of one answer. Default: the endpoint's.
        system: File with a system message.
        max_turns: Maximum answers of the model in one episode.
        request_fields: JSON object with further fields for each request.
        context_tokens: Tokens of the model's context. The model gets tools to drop old turns and to find them again.
        tool_format: Format of the tools: openai, or openai-strict for calls that always fit their schemas.
        images: Send images of results, such as screenshots, to the model. Without it, the model reads [image].
        agent: A program that is an MCP client, with its arguments. {mcp_url} and {prompt} are replaced. Without
            {prompt}, the program reads the prompt from stdin. MCPENV_MCP_URL and MCPENV_PROMPT are set too. It runs in
            an empty directory.
        workspace: Folder that is copied to the program's working directory for each episode.
        isolation: auto: where bubblewrap works, the program sees neither the environment's files nor results.
            bubblewrap: refuse to start where it does not work. none: no isolation. Default: auto.
        hide: More files or folders that an isolated program must not see; may be given several times.
        show: Files or folders that it may read although they are hidden or in /tmp; may be given several times.
    """

    model: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    system: Path | None = None
    max_turns: int | None = None
    request_fields: str | None = None
    context_tokens: int | None = None
    tool_format: Literal["openai", "openai-strict"] | None = None
    images: Flag = False
    agent: str | None = None
    workspace: Path | None = None
    isolation: Choice | None = None
    hide: Paths = None
    show: Paths = None

    def make(self) -> Agent:
        """Return the agent.

        Raises:
            ConfigurationError: not exactly one of ``model`` and ``agent`` is given, or the agent cannot be made.
        """
        if (self.model is None) == (self.agent is None):
            raise ConfigurationError("no single agent is chosen: give either --model NAME or --agent COMMAND")
        given = {name for name, value in vars(self).items() if value is not None and value is not False}
        given -= {"agent", "model"}
        if self.agent is not None:
            _refuse(
                given - _FOR_PROGRAMS - _FOR_ENDPOINTS, "only for --model; give an --agent its options in its command"
            )
            return ProgramAgent(
                self.agent,
                workspace=self.workspace,
                isolation=self.isolation or "auto",
                hide=self.hide or (),
                show=self.show or (),
                endpoint=self._endpoint(given),
            )
        assert self.model is not None
        _refuse(given & _FOR_PROGRAMS, "only for --agent")
        key = self.api_key_env
        if key is None and os.environ.get(DEFAULT_KEY):
            key = DEFAULT_KEY
        return ModelAgent(
            self.model,
            base_url=self.base_url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_URL,
            api_key_env=key,
            system=None if self.system is None else read_text("--system", self.system),
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            **({} if self.max_turns is None else {"max_turns": self.max_turns}),
            extra=json_object("--request-fields", self.request_fields),
            context_tokens=self.context_tokens,
            tool_format=self.tool_format or "openai",
            images=self.images,
        )

    def _endpoint(self, given: set[str]) -> Upstream | None:
        """Return the endpoint of a program's model; None if it is not recorded."""
        if self.base_url is None:
            _refuse(given & _FOR_ENDPOINTS, "with --agent only beside --base-url, the endpoint of its model")
            return None
        return Upstream(self.base_url, self.api_key_env, json_object("--request-fields", self.request_fields))


@Parameter(name="*", group=_EPISODES)
@dataclass(frozen=True, kw_only=True)
class EpisodeOptions:
    """The options that choose the episodes.

    Attributes:
        split: Split of the tasks. Default: test, or else the only split.
        n: Number of tasks (default: all); for an environment without tasks, number of seeds (default: 10).
        k: Number of episodes of each task or seed.
        seed: Seed to choose the tasks at random, instead of the first n. Without tasks: the first seed (default: 0).
        tasks: File of tasks to use instead of the environment's own.
        columns: Columns of that file by the fields of a task, such as prompt=question,answer=solution. A field that
            tasks do not have is in the metadata, as columns are that are not named.
        settings: name=value for the environment's constructor; may be given several times.
        concurrency: Maximum concurrent episodes. Default: 4, or the environment's own limit if that is lower.
        timeout_s: Seconds for which the agent may act in one episode.
        control_token: Control token of a server at a URL. On the command line, every user of this machine can see it
            (ps). Default: MCPENV_CONTROL_TOKEN.
        control_token_file: File with that token.
    """

    split: str | None = None
    n: Annotated[int | None, Parameter(name=["-n"])] = None
    k: Annotated[int, Parameter(name=["-k"])] = 1
    seed: int | None = None
    tasks: Path | None = None
    columns: str | None = None
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None
    concurrency: int | None = None
    timeout_s: float = 1800.0
    control_token: Secret = None
    control_token_file: Path | None = None


@Parameter(name="*", group=_RESULTS)
@dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """The options for the results.

    Attributes:
        out: Folder for the results. A folder with results of the same evaluation is continued. Default: a new folder
            in runs/.
        fresh: Delete the results in the folder first.
        retry_errors: Repeat episodes in which the environment or the endpoint failed.
        pass_threshold: Minimum return of an episode that passes. Default: the task's full reward.
        fail_under: Exit with status 1 if pass@1 is below this value, or the mean return if there is no threshold.
        as_json: Print the figures as one JSON document.
    """

    out: Path | None = None
    fresh: Flag = False
    retry_errors: Flag = False
    pass_threshold: float | None = None
    fail_under: float | None = None
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False


def evaluate_command(
    target: str,
    /,
    *,
    agent: AgentOptions = AgentOptions(),
    episodes: EpisodeOptions = EpisodeOptions(),
    results: ResultOptions = ResultOptions(),
    debug: Flag = False,
) -> int:
    """Evaluate an agent on an environment's tasks and print the figures.

    The agent is a model at an endpoint (--model NAME), or a program that is an MCP client (--agent COMMAND).

    Exit status 0: success. 1: the result is below --fail-under, the environment or the endpoint failed in an episode,
    the agent's program crashed in all episodes, or no episode has a tool call. 2: nothing was played, or the agent or
    the server was lost. 130: Ctrl-C. After any of these, the same command with --out continues the evaluation.

    Args:
        target: An environment as for run, or the URL of a server.
        debug: Show logs, and the traceback when something fails.
    """
    quiet_logs(debug)
    server = target if is_url(target) else None
    token = read_token(
        "--control-token", CONTROL_TOKEN, episodes.control_token, episodes.control_token_file, url=server
    )
    if not is_url(target) and (episodes.control_token is not None or episodes.control_token_file is not None):
        raise ConfigurationError("--control-token and --control-token-file are for a server at a URL")
    playing = agent.make()
    if isinstance(playing, ProgramAgent) and playing.isolated.bwrap is None:
        note(f"The agent is {NOT_ISOLATED}: {playing.isolated.reason}. It may read answers and earlier results.")
    with _Shown() as shown:
        done = evaluate(
            target,
            playing,
            out=results.out,
            split=episodes.split,
            n=episodes.n,
            k=episodes.k,
            seed=episodes.seed,
            tasks=episodes.tasks,
            columns=episodes.columns,
            settings=episodes.settings or (),
            concurrency=episodes.concurrency,
            timeout_s=episodes.timeout_s,
            control_token=token if is_url(target) else None,
            pass_threshold=results.pass_threshold,
            fresh=results.fresh,
            retry_errors=results.retry_errors,
            on_progress=shown.show,
        )
    if results.as_json:
        print_json(done.to_plain())
    else:
        _print(done)
    note(f"Report: {write_report(done.run)}")
    return _status(done, results.fail_under)


# -- the agent's options


def _refuse(given: set[str], why: str) -> None:
    if given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(given))
        raise ConfigurationError(f"{options}: {why}")


# -- while it runs


class _Shown:
    """The progress bar on stderr, shown if stderr is a terminal. On an interrupt it prints how to continue."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[passed]}"),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("episodes", total=None, passed="")
        self._last: Progress | None = None

    def __enter__(self) -> _Shown:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.stop()
        if kind is None or self._last is None:
            return
        there = f"{self._last.finished} of {self._last.planned} episodes are finished"
        where = shlex.quote(str(self._last.directory))
        note(f"{there}; the same command with --out {where} continues.")

    def show(self, progress: Progress) -> None:
        """Update the bar with the progress; called after each episode."""
        if self._last is None and progress.finished:
            note(f"{progress.finished} of {progress.planned} episodes are finished already.")
        self._last = progress
        passed = "" if progress.passed is None else f"{progress.passed} passed"
        self._bar.update(self._task, total=progress.planned, completed=progress.finished, passed=passed)


# -- after the end


def _print(done: Evaluated) -> None:
    page, summary = Page(sys.stdout), done.summary
    unit = "seeds" if done.settings["split"] is None else "tasks"
    counted = f"{summary.finished} ({unit}: {len(summary.tasks)}), {summary.scored} with a return"
    isolation = [("isolation", name)] if (name := done.isolation) is not None else []
    lines = [("episodes", counted), *_figures(summary), *isolation, ("results", str(done.directory))]
    width = max(len(name) for name, _ in lines) + 2
    for name, value in lines:
        page.line((name.ljust(width), "bold"), value)
    kinds: dict[str, list[LabelSummary]] = {}
    for label in summary.labels:
        kinds.setdefault(label.kind, []).append(label)
    shown = [label for labels in kinds.values() for label in labels[:_LABELS_SHOWN]]
    if shown:
        page.line()
        print_table(page, LABELS, [tuple(map(printable, label_row(label))) for label in shown], right=LABELS[1:])
    if len(summary.labels) > len(shown):
        page.line((f"and {len(summary.labels) - len(shown)} more; the report and --json have them", "dim"))


def _figures(summary: Summary) -> Iterator[tuple[str, str]]:
    for k, estimate in summary.pass_at.items():
        yield f"pass@{k}", _estimate(estimate)
    for k, estimate in summary.pass_hat.items():
        yield f"pass^{k}", _estimate(estimate)
    if summary.mean_return is not None:
        yield "mean return", _estimate(summary.mean_return)
    for name, mean in summary.components.items():
        yield f"  {printable(name)}", f"{mean:.3f}"
    if summary.mean_steps is not None:
        yield "steps", f"mean {summary.mean_steps:.1f}, median {summary.median_steps:g}, most {summary.max_steps}"
    if summary.prompt_tokens is not None:
        yield "tokens", f"{summary.prompt_tokens:,} in, {summary.completion_tokens or 0:,} out"
    if summary.user_prompt_tokens is not None:
        yield "user's tokens", f"{summary.user_prompt_tokens:,} in, {summary.user_completion_tokens or 0:,} out"
    if summary.cost is not None:
        yield "cost", f"{summary.cost:,.4f}"
    yield "status", ", ".join(f"{count} {code.replace('_', ' ')}" for code, count in summary.statuses.items()) or "-"
    for kind, count in summary.failures.items():
        yield "failed", f"{count} {kind.replace('_', ' ')}"
    if summary.not_passed:
        yield "failed", f"{summary.not_passed} not passed"


def _estimate(estimate: Estimate) -> str:
    if estimate.interval is None:
        return f"{estimate.value:.3f}"
    low, high = estimate.interval
    return f"{estimate.value:.3f}  [{low:.3f}, {high:.3f}]"


def _status(done: Evaluated, fail_under: float | None) -> int:
    summary = done.summary
    if summary.finished and summary.failures.get(Failure.AGENT_CRASHED) == summary.finished:
        why = Counter(result.detail for result in done.results).most_common(1)[0][0]
        where = shlex.quote(str(done.directory / AGENTS))
        report(f"the agent crashed in every episode: {why}. Its output is in {where}. --fresh repeats the episodes")
        return FAILED
    if summary.without_calls and not summary.unscored:
        where = shlex.quote(str(done.directory / AGENTS))
        output = f" Its output is in {where}." if done.isolation is not None else ""
        report(f"{NO_CALLS}: is the agent connected to the environment?{output} --fresh repeats the episodes")
        return FAILED
    if summary.unscored:
        why = next((result.detail for result in done.results if result.unscored and result.detail), None)
        first = "" if why is None else f" (the first: {printable(why)})"
        report(f"{number_of(summary.unscored, 'episode')} without a score{first}; --retry-errors repeats them")
        return FAILED
    if fail_under is None:
        return 0
    name, reached = ("pass@1", summary.pass_at.get(1)) if summary.pass_at else ("mean return", summary.mean_return)
    if reached is not None and reaches(reached.value, fail_under):
        return 0
    value = "not known" if reached is None else f"{reached.value:.3f}"
    report(f"{name} is {value}, below --fail-under {fail_under:g}")
    return FAILED


evaluations = App(name="eval", help_format=FORMAT)
evaluations.default(evaluate_command)
evaluations.command(
    "mcpenv.extensions.evaluation.compare_evaluations:compare_command",
    name="compare",
    help="Compare two evaluations.",
    help_epilogue="",
)
