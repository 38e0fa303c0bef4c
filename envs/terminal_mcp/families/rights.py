"""Goals over permissions and links."""

from __future__ import annotations

from mcpenv.extensions.generated_worlds import Goal, answered

from ..disk import Disk, goal, lines, quoted, run
from ..names import PEOPLE, SERVICES, VERBS
from .kind import Kind


def _private_keys(d: Disk) -> Goal:
    folder = d.folder("keys")
    opened = []
    for n, name in enumerate(d.sample(PEOPLE, d.scaled(3, 9))):
        path = f"{folder}/{name} laptop.key" if d.level > 2 and n % 3 == 1 else f"{folder}/{name}.key"
        mode = (0o644, 0o600, 0o664, 0o640)[n % 4]
        d.put(path, f"key of {name} {d.code()}\n", mode)
        d.put(f"{folder}/{name}.pub", f"public key of {name}\n")
        d.want_mode(path, 0o600)
        if mode != 0o600:
            opened.append(path)
    prompt = (
        f"Give the .key files in {folder} the permissions 600: only the owner may read and write them. The .pub files "
        "stay as they are"
    )
    return goal(prompt, [run(f"ls -l {folder}"), run(f"chmod 600 {quoted(*opened)}")], [])


def _executable(d: Disk) -> Goal:
    folder = d.folder("scripts")
    chosen = []
    for n, name in enumerate(d.sample(SERVICES, d.scaled(4, 10))):
        path = f"{folder}/{d.rng.choice(VERBS)}-{name}"
        if n % 3 == 2:
            d.put(path, f"notes about #!/bin/sh of {name}\n")
            continue
        d.put(path, f"#!/bin/sh\necho {name}\n", 0o755 if n % 4 == 3 else 0o644)
        d.want_mode(path, 0o755)
        if n % 4 != 3:
            chosen.append(path)
    prompt = (
        f"Give the scripts in {folder} the permissions 755: all may execute them. A script is a file that has #! at "
        "the beginning of its first line"
    )
    return goal(prompt, [run(f"head -1 {folder}/*"), run(f"chmod 755 {quoted(*chosen)}")], [])


def _count_writable(d: Disk) -> Goal:
    folder = d.folder("shared")
    count = 0
    for n, name in enumerate(d.sample(PEOPLE, d.scaled(5, 18))):
        mode = d.rng.choice((0o644, 0o664, 0o666, 0o606, 0o646, 0o600, 0o640))
        count += bool(mode & 0o002)
        d.put(f"{folder}/{'in/' if n % 2 else ''}{name}.txt", f"{name}\n", mode)
    reply, change = answered(count)
    prompt = f"To how many files below {folder} may others write, who are neither the owner nor in the group?"
    return goal(prompt, [run(f"find {folder} -type f -perm -002 | wc -l"), reply], [change])


def _take_write(d: Disk) -> Goal:
    folder = d.folder("shared")
    wrong = []
    for n, name in enumerate(d.sample(PEOPLE, d.scaled(4, 12))):
        mode = (0o666, 0o644, 0o646, 0o600)[n % 4]
        path = f"{folder}/{'in/' if n % 2 else ''}{name}{' two' if d.level > 2 and n % 3 == 0 else ''}.txt"
        d.put(path, f"{name}\n", mode)
        d.want_mode(path, mode & ~0o002)
        if mode & 0o002:
            wrong.append(path)
    prompt = (
        f"Take the permission to write from others, who are neither the owner nor in the group, for all files below "
        f"{folder}. All other permissions stay"
    )
    return goal(prompt, [run(f"find {folder} -type f -perm -002"), run(f"chmod o-w {quoted(*wrong)}")], [])


def _as_listed(d: Disk) -> Goal:
    folder = d.folder("site")
    rows, changes = [], []
    for name in d.sample(SERVICES, d.scaled(3, 9)):
        path, mode, wanted = f"{folder}/{name}.html", *d.rng.sample((0o644, 0o640, 0o600, 0o664), 2)
        d.put(path, f"<p>{name}</p>\n", mode)
        d.want_mode(path, wanted)
        rows.append(f"{wanted:o} {name}.html")
        changes.append(f"chmod {wanted:o} {path}")
    d.put(f"{folder}/MODES", lines(rows))
    prompt = f"Give the files in {folder} the permissions that {folder}/MODES lists"
    return goal(prompt, [run(f"cat {folder}/MODES"), run("; ".join(changes))], [])


def _current_link(d: Disk) -> Goal:
    folder = d.folder("releases")
    major = d.rng.randint(1, 9)
    minors = d.rng.sample(range(2, 30), d.scaled(3, 9))
    newest = max(minors)
    for minor in minors:
        d.put(f"{folder}/v{major}.{minor}/VERSION", f"{major}.{minor}\n")
    d.put_link(f"{folder}/current", f"v{major}.{min(minors)}")
    d.want_link(f"{folder}/current", f"v{major}.{newest}")
    prompt = (
        f"Point the symbolic link {folder}/current to the folder of the highest version in {folder}. Its target is the "
        "bare name of that folder, such as v1.10, which is higher than v1.9"
    )
    return goal(
        prompt, [run(f"ls {folder}; readlink {folder}/current"), run(f"ln -sfn v{major}.{newest} {folder}/current")], []
    )


FAMILIES = (
    Kind("private-keys", "rights", 1, ("many", "blanks"), _private_keys),
    Kind("make-executable", "rights", 1, ("many",), _executable),
    Kind("count-writable", "rights", 1, ("answer",), _count_writable),
    Kind("take-write-from-others", "rights", 1, ("many", "blanks"), _take_write),
    Kind("permissions-as-listed", "rights", 2, ("many", "hops"), _as_listed),
    Kind("point-to-the-newest", "rights", 1, (), _current_link),
)
