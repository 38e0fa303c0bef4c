"""Goals over tables of cron."""

from __future__ import annotations

from mcpenv.extensions.generated_worlds import Goal, NoCase, answered

from ..disk import Disk, goal, lines, run
from ..names import JOBS, PEOPLE, SERVICES
from .kind import Kind

DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
Job = tuple[str, str]
"""The five fields of its time, and its command."""


def _jobs(d: Disk) -> list[Job]:
    found = []
    for job in d.sample(JOBS, d.scaled(4, 9)):
        minute, hour = d.rng.randrange(0, 60, 5), d.rng.randint(0, 23)
        days = d.rng.choice(("* * *", "* * 1-5", "* * 0", "1 * *", f"* * {d.rng.randint(1, 6)}"))
        found.append((f"{minute} {hour} {days}", f"/opt/{d.rng.choice(SERVICES)}/{job}.sh"))
    return found


def _put(d: Disk, jobs: list[Job]) -> str:
    path = f"{d.folder('cron')}/crontab"
    d.put(path, _text(jobs))
    return path


def _text(jobs: list[Job]) -> str:
    return lines(
        ["# minute hour day-of-month month day-of-week command", *(f"{when} {command}" for when, command in jobs)]
    )


def _add(d: Disk) -> Goal:
    jobs = _jobs(d)
    path = _put(d, jobs)
    minute, hour, day = d.rng.randint(1, 59), d.rng.randint(0, 23), d.rng.randrange(7)
    command = f"/opt/{d.rng.choice(PEOPLE)}/run.sh"
    days, said = d.rng.choice(
        (
            ("* * *", "every day"),
            ("* * 1-5", "from Monday to Friday (write 1-5)"),
            (f"* * {day}", f"on {DAYS[day]} (write {day})"),
        )
    )
    d.want(path, _text([*jobs, (f"{minute} {hour} {days}", command)]))
    prompt = (
        f"Add a line at the end of {path} that runs {command} at {hour:02}:{minute:02} {said}, with one blank between"
        " fields, no leading zeros and * elsewhere"
    )
    return goal(prompt, [run(f"cat {path}"), run(f"echo '{minute} {hour} {days} {command}' >> {path}")], [])


def _move(d: Disk) -> Goal:
    jobs = _jobs(d)
    path = _put(d, jobs)
    n = d.rng.randrange(len(jobs))
    when, command = jobs[n]
    minute, hour = d.rng.randint(1, 59), d.rng.randint(0, 23)
    rest = when.split(" ", 2)[2]
    d.want(path, _text([*jobs[:n], (f"{minute} {hour} {rest}", command), *jobs[n + 1 :]]))
    prompt = (
        f"Let {command} in {path} run at {hour:02}:{minute:02} (no leading zeros in the fields), on the same days as "
        "before"
    )
    change = f"sed -i 's|^[0-9]* [0-9]* \\(.*{command}\\)$|{minute} {hour} \\1|' {path}"
    return goal(prompt, [run(f"grep -n {command} {path}"), run(change)], [])


def _disable(d: Disk) -> Goal:
    jobs = _jobs(d)
    path = _put(d, jobs)
    owner = d.rng.choice([command.split("/")[2] for _, command in jobs])
    d.want(path, _text([(f"#{when}" if command.split("/")[2] == owner else when, command) for when, command in jobs]))
    prompt = (
        f"Switch off the jobs in {path} whose command is below /opt/{owner}/: put a # at the beginning of their "
        "lines, without a blank"
    )
    return goal(prompt, [run(f"cat {path}"), run(f"sed -i '\\|^[0-9].* /opt/{owner}/|s/^/#/' {path}")], [])


def _runs(when: str, day: int) -> bool:
    """Return True if a job runs on a day of the week, whatever its date."""
    _, _, date, _, days = when.split()
    first, _, last = days.partition("-")
    return date == "*" and (days == "*" or int(first) <= day <= int(last or first))


def _which(d: Disk) -> Goal:
    jobs = _jobs(d)
    day = d.rng.randrange(7)
    due = sorted((int(when.split()[1]), int(when.split()[0]), command) for when, command in jobs if _runs(when, day))
    if not due or (len(due) > 1 and due[0][:2] == due[1][:2]):
        raise NoCase
    path = _put(d, jobs)
    reply, change = answered(due[0][2])
    prompt = (
        f"Which command in {path} runs first on a {DAYS[day]}, from 00:00 on? Leave out those that run on one day of "
        "the month only. Answer with the whole path of the command"
    )
    return goal(prompt, [run(f"sort -k2n -k1n {path}"), reply], [change])


FAMILIES = (
    Kind("add-a-job", "cron", 1, (), _add),
    Kind("move-a-job", "cron", 1, (), _move),
    Kind("switch-jobs-off", "cron", 1, (), _disable),
    Kind("first-job-of-a-day", "cron", 1, ("answer",), _which),
)
