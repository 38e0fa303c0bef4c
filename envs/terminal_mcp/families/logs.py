"""Goals over logs: find, count, aggregate."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timedelta

from mcpenv.extensions.generated_worlds import Goal, NoCase, answered

from ..disk import Disk, csv_of, goal, lines, quoted, run
from ..names import PAGES, SERVICES, TEXTS, TROUBLES
from .kind import Kind

Line = tuple[str, ...]
"""The words of a line of a log, the last of which may have blanks."""


def _moments(d: Disk, count: int) -> list[str]:
    at = datetime(2027, d.rng.randint(1, 12), d.rng.randint(1, 28), d.rng.randint(0, 12))
    found = []
    for _ in range(count):
        at += timedelta(seconds=d.rng.randint(5, 300))
        found.append(at.strftime("%Y-%m-%dT%H:%M:%SZ"))
    return found


def _spread(d: Disk, rows: list[Line], noun: str) -> tuple[str, list[str]]:
    """Write lines to rotated files, in the order of time, and return the folder and the names of its files."""
    folder, files = d.folder("logs"), d.scaled(1, 6)
    size = -(-len(rows) // files)
    names = []
    for n in range(files):
        names.append(f"{folder}/{noun}.{n + 1}.log")
        d.put(names[-1], lines([" ".join(row) for row in rows[n * size : (n + 1) * size]]))
    return folder, names


def _events(d: Disk) -> list[Line]:
    services = d.sample(SERVICES, d.scaled(4, 8))
    found: list[Line] = []
    for at in _moments(d, d.scaled(40, 300)):
        level = d.rng.choices(("INFO", "WARN", "ERROR"), (6, 2, 2))[0]
        text = d.rng.choice(TROUBLES if level == "ERROR" else TEXTS)
        # The same words also stand where they do not count.
        if d.rng.random() < 0.1:
            text += f" after ERROR of {d.rng.choice(services)}"
        found.append((at, level, d.rng.choice(services), text))
    return found


def _requests(d: Disk) -> list[Line]:
    clients = [
        f"10.{d.rng.randint(0, 9)}.{d.rng.randint(0, 99)}.{d.rng.randint(2, 250)}" for _ in range(d.scaled(5, 12))
    ]
    return [
        (
            at,
            d.rng.choice(clients),
            d.rng.choice(("GET", "GET", "POST")),
            d.rng.choice(PAGES),
            d.rng.choice(("200", "200", "200", "304", "404", "500")),
            str(d.rng.randint(200, 9000)),
            str(d.rng.choice((d.rng.randint(5, 300), d.rng.randint(300, 2000)))),
        )
        for at in _moments(d, d.scaled(40, 300))
    ]


REQUEST = "Each line has time, client, method, path, status, bytes and milliseconds"
EVENT = "Each line has time, level, service and text"


def _first(counts: Counter[str]) -> str:
    """Return the only name with the highest count."""
    (name, most), *others = counts.most_common(2)
    if others and others[0][1] == most:
        raise NoCase
    return name


def _count_errors(d: Disk) -> Goal:
    rows = _events(d)
    folder, _ = _spread(d, rows, "service")
    service = d.rng.choice(rows)[2]
    count = sum(row[1:3] == ("ERROR", service) for row in rows)
    reply, change = answered(count)
    prompt = f"How many lines of level ERROR did the service {service} write in the logs in {folder}? {EVENT}"
    return goal(prompt, [run(f"cat {folder}/*.log | grep -c '^[^ ]* ERROR {service} '"), reply], [change])


def _busiest_client(d: Disk) -> Goal:
    rows = _requests(d)
    folder, _ = _spread(d, rows, "access")
    reply, change = answered(_first(Counter(row[1] for row in rows)))
    look = f"cat {folder}/*.log | cut -d' ' -f2 | sort | uniq -c | sort -rn | head -3"
    return goal(f"Which client made the most requests in the logs in {folder}? {REQUEST}", [run(look), reply], [change])


def _busiest_hour(d: Disk) -> Goal:
    rows = _requests(d)
    folder, _ = _spread(d, rows, "access")
    hour = _first(Counter(row[0][:13] for row in rows))
    reply, change = answered(hour)
    look = f"cat {folder}/*.log | cut -c1-13 | sort | uniq -c | sort -rn | head -3"
    prompt = f'In which hour were the most requests in the logs in {folder}? Answer as "2027-01-31T09". {REQUEST}'
    return goal(prompt, [run(look), reply], [change])


def _failures_of(d: Disk) -> Goal:
    rows = _requests(d)
    folder, _ = _spread(d, rows, "access")
    page = _first(Counter(row[3] for row in rows if row[4] == "500"))
    reply, change = answered(page)
    look = f"awk '$5 == 500 {{print $4}}' {folder}/*.log | sort | uniq -c | sort -rn | head -3"
    return goal(
        f"Which path failed most often with status 500 in the logs in {folder}? {REQUEST}",
        [run(look), reply],
        [change],
    )


def _first_sighting(d: Disk) -> Goal:
    rows = _events(d)
    code = d.code()
    at = d.rng.sample(range(len(rows)), 3)
    for n in at:
        rows[n] = (*rows[n][:3], f"{rows[n][3]} [{code}]")
    rows[d.rng.choice([n for n in range(len(rows)) if n not in at])] = (*rows[0][:3], f"see also {code}0")
    rows.sort()
    folder, _ = _spread(d, rows, "service")
    hits = [row for row in rows if f"[{code}]" in row[3]]
    reply, change = answered(hits[0][0])
    prompt = (
        f"At what time did the code [{code}], in its brackets, first appear in the logs in {folder}? Answer with the "
        "time as it stands there"
    )
    return goal(prompt, [run(f"grep -h '\\[{code}\\]' {folder}/*.log | sort | head -1"), reply], [change])


def _error_report(d: Disk) -> Goal:
    rows = _events(d)
    folder, _ = _spread(d, rows, "service")
    counts = Counter(row[2] for row in rows if row[1] == "ERROR")
    if not counts:
        raise NoCase
    out = f"{folder}/errors.csv"
    d.want(out, csv_of(("service", "errors"), sorted(counts.items())))
    made = f"awk '$2 == \"ERROR\" {{print $3}}' {folder}/*.log | sort | uniq -c | awk '{{print $2 \",\" $1}}'"
    prompt = (
        f"Write {out} with the header service,errors and a line for each service that has lines of level ERROR in the "
        f"logs in {folder}: its name and the number of those lines, sorted by name from a to z. {EVENT}"
    )
    return goal(prompt, [run(f"head -3 {folder}/*.log"), run(f"(echo service,errors; {made}) > {out}")], [])


def _trace(d: Disk) -> Goal:
    rows = _events(d)
    name = d.code().lower()
    for n in d.rng.sample(range(len(rows)), d.scaled(4, 12)):
        rows[n] = (*rows[n][:3], f"{rows[n][3]} req={name}")
    for n in d.rng.sample([n for n, row in enumerate(rows) if "req=" not in row[3]], 3):
        rows[n] = (*rows[n][:3], f"{rows[n][3]} req={name}{d.rng.randint(0, 9)}")
    folder = d.folder("logs")
    services = sorted({row[2] for row in rows})
    for service in services:
        d.put(f"{folder}/{service}.log", lines([" ".join(row) for row in rows if row[2] == service]))
    out = f"{folder}/trace.txt"
    d.want(out, lines([" ".join(row) for row in rows if row[3].endswith(f" req={name}")]))
    prompt = (
        f"Write all lines that end with req={name} from the logs in {folder} to {out}, in the order of time, the "
        "earliest first"
    )
    return goal(prompt, [run(f"ls {folder}"), run(f"cat {folder}/*.log | grep ' req={name}$' | sort > {out}")], [])


def _with_one_at(d: Disk, rows: list[Line], limit: int) -> list[Line]:
    """Return the requests with one path whose slowest takes just the limit, so that "more" and "or more" differ."""
    at = d.rng.randrange(len(rows))
    path = rows[at][3]
    return [
        (*row[:6], str(limit if n == at else min(int(row[6]), limit))) if row[3] == path else row
        for n, row in enumerate(rows)
    ]


def _slow_paths(d: Disk) -> Goal:
    limit = d.rng.choice((600, 800, 1000, 1200))
    rows = _with_one_at(d, _requests(d), limit)
    folder, _ = _spread(d, rows, "access")
    slow = sorted({row[3] for row in rows if int(row[6]) > limit})
    if not slow:
        raise NoCase
    out = f"{folder}/slow.txt"
    d.want(out, lines(slow))
    prompt = (
        f"Write the paths with a request of more than {limit} milliseconds in the logs in {folder} to {out}, each "
        f"once, one a line, sorted from a to z. {REQUEST}"
    )
    return goal(
        prompt,
        [
            run(f"head -2 {folder}/*.log"),
            run(f"cat {folder}/*.log | awk '$7 > {limit} {{print $4}}' | sort -u > {out}"),
        ],
        [],
    )


def _bytes_by_status(d: Disk) -> Goal:
    rows = _requests(d)
    folder, _ = _spread(d, rows, "access")
    totals: Counter[str] = Counter()
    for row in rows:
        totals[row[4]] += int(row[5])
    out = f"{folder}/bytes.json"
    d.want(out, json.dumps(totals))
    script = (
        '{b[$5] += $6} END {printf "{"; for (s in b) {printf "%s\\"%s\\": %d", comma, s, b[s]; comma = ", "} print "}"}'
    )
    prompt = (
        f"Write {out}: an object with the sum of the bytes of each status in the logs in {folder}, such as "
        f'{{"200": 1234, "404": 56}}. {REQUEST}'
    )
    return goal(prompt, [run(f"head -2 {folder}/*.log"), run(f"cat {folder}/*.log | awk '{script}' > {out}")], [])


def _silent_service(d: Disk) -> Goal:
    rows = _events(d)
    known = sorted({row[2] for row in rows})
    silent = d.rng.choice([name for name in SERVICES if name not in known])
    folder, _ = _spread(d, [row for row in rows if row[2] != silent], "service")
    inventory = f"{folder}/inventory.txt"
    d.put(inventory, lines(sorted([*known, silent])))
    reply, change = answered(silent)
    look = f"cat {folder}/*.log | cut -d' ' -f3 | sort -u | comm -13 - {inventory}"
    prompt = f"Which service in {inventory} wrote no line in the logs in {folder}? {EVENT}"
    return goal(prompt, [run(f"cat {inventory}"), run(look), reply], [change])


def _delete_quiet_logs(d: Disk) -> Goal:
    folder = d.folder("logs")
    blanks = d.level > 2
    for n, service in enumerate(d.sample(SERVICES, d.scaled(5, 10))):
        name = f"{folder}/{service} old.log" if blanks and n % 2 else f"{folder}/{service}.log"
        quiet = n % 3 == 0
        rows = [
            (at, "INFO" if quiet or d.rng.random() < 0.7 else "ERROR", d.rng.choice(TEXTS)) for at in _moments(d, 12)
        ]
        if not quiet:
            rows[5] = (rows[5][0], "ERROR", d.rng.choice(TROUBLES))
        else:
            rows[3] = (rows[3][0], "INFO", "NO ERROR found")
        d.put(name, lines([" ".join(row) for row in rows]))
        if quiet:
            d.want_gone(name)
    doomed = [name for name in d.before if name.startswith(f"{folder}/") and name not in d.after]
    prompt = f"Delete the logs in {folder} that have no line of level ERROR. Each line has time, level and text"
    return goal(prompt, [run(f"grep -L '^[^ ]* ERROR ' {folder}/*.log"), run(f"rm {quoted(*doomed)}")], [])


FAMILIES = (
    Kind("count-errors", "logs", 1, ("answer",), _count_errors),
    Kind("busiest-client", "logs", 1, ("answer",), _busiest_client),
    Kind("busiest-hour", "logs", 1, ("answer",), _busiest_hour),
    Kind("most-failures", "logs", 1, ("answer",), _failures_of),
    Kind("first-sighting", "logs", 1, ("answer",), _first_sighting),
    Kind("error-report", "logs", 1, (), _error_report),
    Kind("trace-a-request", "logs", 1, (), _trace),
    Kind("slow-paths", "logs", 1, (), _slow_paths),
    Kind("bytes-by-status", "logs", 1, (), _bytes_by_status),
    Kind("silent-service", "logs", 2, ("answer", "hops"), _silent_service),
    Kind("delete-quiet-logs", "logs", 1, ("many", "blanks"), _delete_quiet_logs),
)
