"""Goals over source code and settings: one change in many files."""

from __future__ import annotations

import re

from mcpenv.extensions.generated_worlds import Goal

from ..disk import Disk, goal, lines, quoted, run
from ..names import PEOPLE, SERVICES, SETTINGS, THINGS, VERBS
from .kind import Kind

FROZEN = "# frozen"
"""The line of a file that must not be changed, by rule 1 of README.txt."""


def _modules(d: Disk, folder: str, function: str, other: str) -> list[str]:
    """Write a module that defines a function, and modules that call it and others, and return their paths."""
    verb, _, thing = function.partition("_")
    near = [f"{function}_now", f"re{function}", f"{verb}_all_{thing}", other]
    paths = [f"{folder}/core/functions.py"]
    d.put(paths[0], lines([f"def {function}(items, limit):", "    return items[:limit]"]))
    for n, name in enumerate(d.sample(SERVICES, d.scaled(3, 10))):
        blank = d.level > 2 and n % 3 == 1
        path = f"{folder}/{'old ' if blank else ''}{name}.py" if n % 2 else f"{folder}/core/{name}.py"
        body = ["import sys", "", ""]
        calls = d.rng.sample(near, 2) + [function] * (n % 4 != 3)
        d.rng.shuffle(calls)
        for each in calls:
            body += [f"def use_{each}(items):", f"    return {each}(items, limit={d.rng.randint(2, 90)})", "", ""]
        d.put(path, lines(body[:-2]))
        paths.append(path)
    return paths


def _replaced(d: Disk, paths: list[str], old: str, new: str) -> None:
    for path in paths:
        content = d.after[path].content
        assert isinstance(content, bytes)
        d.want(path, re.sub(rf"\b{old}\b", new, content.decode()))


def _names(d: Disk) -> tuple[str, str, str]:
    verbs, things = d.sample(VERBS, 2), d.sample(THINGS, 2)
    return f"{verbs[0]}_{things[0]}", f"{verbs[1]}_{things[0]}", f"{verbs[0]}_{things[1]}"


def _renamed(folder: str, old: str, new: str) -> str:
    return (
        f"Rename the function {old} to {new} in the .py files below {folder}, both where it is defined and where it is "
        "called. Other names that contain it stay"
    )


def _rename_function(d: Disk) -> Goal:
    folder = d.folder("code")
    old, new, other = _names(d)
    _replaced(d, _modules(d, folder, old, other), old, new)
    prompt = _renamed(folder, old, new)
    change = f"find {folder} -name '*.py' -print0 | xargs -0 sed -i 's/\\b{old}\\b/{new}/g'"
    return goal(prompt, [run(f"grep -rlw {old} {folder}"), run(change)], [])


def _rename_not_vendored(d: Disk) -> Goal:
    folder = d.folder("code")
    old, new, other = _names(d)
    _replaced(d, _modules(d, folder, old, other), old, new)
    # It has a function of the same name of its own, so that the renamed program still runs.
    vendored = [f"def {old}(items):", "    return sorted(items)", "", "", f"print({old}([2, 1]))"]
    d.put(f"{folder}/vendor/{d.rng.choice(PEOPLE)}.py", lines(vendored))
    prompt = _renamed(folder, old, new)
    change = "find {} -name '*.py' {}-print0 | xargs -0 sed -i 's/\\b{}\\b/{}/g'"
    return goal(
        prompt,
        [run("cat README.txt"), run(change.format(folder, "-not -path '*/vendor/*' ", old, new))],
        [],
        breach=[run(change.format(folder, "", old, new))],
    )


def _settings(d: Disk, folder: str, setting: str) -> list[str]:
    paths = []
    for n, name in enumerate(d.sample(SERVICES, d.scaled(3, 10))):
        path = f"{folder}/{name} (copy).conf" if d.level > 2 and n % 3 == 2 else f"{folder}/{name}.conf"
        rows = [f"# settings of {name}, see also {setting}"]
        rows += [f"{each} = {d.rng.randint(2, 900)}" for each in (setting, f"max_{setting}", *d.sample(SETTINGS, 3))]
        d.put(path, lines(list(dict.fromkeys(rows))))
        paths.append(path)
    return paths


def _set(d: Disk, path: str, setting: str, value: int) -> None:
    content = d.after[path].content
    assert isinstance(content, bytes)
    d.want(path, re.sub(rf"(?m)^{setting} = .*$", f"{setting} = {value}", content.decode()))


def _set_everywhere(d: Disk) -> Goal:
    folder, value, setting = d.folder("conf"), d.rng.randint(1000, 9000), d.rng.choice(SETTINGS)
    for path in _settings(d, folder, setting):
        _set(d, path, setting, value)
    prompt = f"Set {setting} to {value} in each .conf file in {folder}. Comments and other settings stay"
    change = f"sed -i 's/^{setting} = .*/{setting} = {value}/' {folder}/*.conf"
    return goal(prompt, [run(f"grep -n {setting} {folder}/*.conf"), run(change)], [])


def _set_but_not_frozen(d: Disk) -> Goal:
    folder, value, setting = d.folder("conf"), d.rng.randint(1000, 9000), d.rng.choice(SETTINGS)
    free = []
    for n, path in enumerate(_settings(d, folder, setting)):
        if n % 3 == 1:
            content = d.before[path].content
            assert isinstance(content, bytes)
            d.put(path, content + f"{FROZEN}\n".encode())
        else:
            free.append(path)
            _set(d, path, setting, value)
    prompt = f"Set {setting} to {value} in the .conf files in {folder}. Comments and other settings stay"
    change = f"sed -i 's/^{setting} = .*/{setting} = {value}/'"
    look = [run("cat README.txt"), run(f"grep -L '^{FROZEN}$' {folder}/*.conf")]
    return goal(prompt, [*look, run(f"{change} {quoted(*free)}")], [], breach=[run(f"{change} {folder}/*.conf")])


def _move_module(d: Disk) -> Goal:
    folder = d.folder("code")
    old, new = d.sample(SERVICES, 2)
    function = f"{d.rng.choice(VERBS)}_{d.rng.choice(THINGS)}"
    d.put(f"{folder}/{old}.py", f"def {function}(items):\n    return sorted(items)\n")
    d.put(f"{folder}/{old}_test_data.txt", f"{old}: data\n")
    users = []
    for name in d.sample(PEOPLE, d.scaled(3, 9)):
        path = f"{folder}/app/{name}.py"
        uses = d.rng.random() < 0.7
        kind = d.rng.choice((f"from {old} import {function}", f"import {old}"))
        body = kind if uses else f"from {old}_more import {function}"
        call = f"{old}.{function}" if body.startswith("import") else function
        d.put(path, lines([body, "", "", f"print({call}([3, 1]))"]))
        users.append(path)
    _replaced(d, users, old, new)
    d.want_moved(f"{folder}/{old}.py", f"{folder}/{new}.py")
    prompt = (
        f"Rename the Python module {old} in {folder} to {new}: its file {old}.py, and each use of its name in the "
        f"files in {folder}/app. The module {old}_more is another one"
    )
    change = f"mv {folder}/{old}.py {folder}/{new}.py && sed -i 's/\\b{old}\\b/{new}/g' {folder}/app/*.py"
    return goal(prompt, [run(f"grep -rn {old} {folder}"), run(change)], [])


def _remove_debug(d: Disk) -> Goal:
    folder = d.folder("code")
    count = 0
    for n, name in enumerate(d.sample(SERVICES, d.scaled(3, 9))):
        path = f"{folder}/{name}.py"
        rows = []
        for thing in d.sample(THINGS, 5):
            rows.append(f"{thing} = {d.rng.randint(1, 99)}")
            if d.rng.random() < 0.5 or n == 0:
                rows.append(
                    d.rng.choice((f'debug("{thing}", {thing})', f'debug("here", {n})', f"print(debug_of({thing}))"))
                )
        d.put(path, lines(rows))
        kept = [row for row in rows if not row.startswith("debug(")]
        count += len(rows) - len(kept)
        d.want(path, lines(kept))
    prompt = f'Delete the lines that begin with "debug(" from the .py files in {folder}'
    return goal(prompt, [run(f"grep -n debug {folder}/*.py"), run(f"sed -i '/^debug(/d' {folder}/*.py")], [])


def _bump_version(d: Disk) -> Goal:
    folder = d.folder("packages")
    major, minor = d.rng.randint(1, 9), d.rng.randint(1, 9)
    old, new = f"{major}.{minor}.0", f"{major}.{minor + 1}.0"
    others = (f"{major}.{minor}.01", f"{major + 1}.{minor}.0", f"{major}.{minor}.0-beta")
    for n, name in enumerate(d.sample(SERVICES, d.scaled(4, 12))):
        path = f"{folder}/{name}/VERSION" if n % 2 else f"{folder}/{name}/lib/VERSION"
        if n % 3 == 2:
            d.put(path, f"{d.rng.choice(others)}\n")
        else:
            d.put(path, f"{old}\n")
            d.want(path, f"{new}\n")
        d.put(f"{folder}/{name}/CHANGES.txt", f"{old}: first release\n")
    prompt = (
        f"Each package below {folder} has a file VERSION. Where it is exactly {old}, make it {new}. Change no other "
        "file"
    )
    dots = old.replace(".", "\\.")
    change = f"find {folder} -name VERSION -print0 | xargs -0 sed -i 's/^{dots}$/{new}/'"
    return goal(prompt, [run(f"grep -r . {folder} --include=VERSION"), run(change)], [])


def _line_ends(d: Disk) -> Goal:
    folder = d.folder("texts")
    for n, name in enumerate(d.sample(PEOPLE, d.scaled(4, 10))):
        path = f"{folder}/letter to {name}.txt" if n % 2 and d.level > 2 else f"{folder}/{name}.txt"
        text = lines([f"Dear {name},", f"your {d.rng.choice(THINGS)} are ready.", ""])
        windows = n % 3 != 1
        d.put(path, text.replace("\n", "\r\n") if windows else text)
        d.want(path, text)
    d.put(f"{folder}/form.dat", "A\r\nB\r\n")
    prompt = (
        f"Some .txt files in {folder} have the line ends of Windows (CR LF). Give them those of Unix (LF). "
        "Leave files of other kinds as they are"
    )
    return goal(prompt, [run(f"grep -l $'\\r' {folder}/*"), run(f"sed -i 's/\\r$//' {folder}/*.txt")], [])


def _header(d: Disk) -> Goal:
    folder = d.folder("code")
    header = f"# Copyright {d.rng.randint(2020, 2027)} {d.rng.choice(PEOPLE).title()}"
    lacking = []
    for n, name in enumerate(d.sample(SERVICES, d.scaled(3, 10))):
        path = f"{folder}/{name}.sh"
        rows = ["#!/bin/sh", header, f"echo {name}"] if n % 3 == 1 else ["#!/bin/sh", f"echo {name}"]
        d.put(path, lines(rows))
        d.want(path, lines(["#!/bin/sh", header, f"echo {name}"]))
        if n % 3 != 1:
            lacking.append(path)
    prompt = f'Each .sh file in {folder} must have "{header}" as its second line. Insert it where it is missing'
    change = f"for f in {' '.join(lacking)}; do sed -i '1a {header}' $f; done"
    return goal(prompt, [run(f"grep -L '^{header}$' {folder}/*.sh"), run(change)], [])


FAMILIES = (
    Kind("rename-function", "code", 1, ("many", "blanks"), _rename_function),
    Kind("rename-but-not-vendored", "code", 1, ("many", "trap"), _rename_not_vendored),
    Kind("set-everywhere", "code", 1, ("many", "blanks"), _set_everywhere),
    Kind("set-but-not-frozen", "code", 1, ("many", "trap"), _set_but_not_frozen),
    Kind("move-module", "code", 1, ("many",), _move_module),
    Kind("remove-debug-lines", "code", 1, ("many",), _remove_debug),
    Kind("raise-versions", "code", 1, ("many",), _bump_version),
    Kind("line-ends", "code", 1, ("many", "blanks"), _line_ends),
    Kind("insert-header", "code", 1, ("many",), _header),
)
