"""Goals whose solution leads from file to file."""

from __future__ import annotations

from itertools import pairwise

from mcpenv.extensions.generated_worlds import Goal, answered

from ..disk import Disk, goal, lines, run
from ..names import PEOPLE, REGIONS, SERVICES, SETTINGS
from .kind import Kind


def _follow(d: Disk) -> Goal:
    folder = d.folder("notes")
    length = d.scaled(2, 6)
    names = [f"{folder}/{name}.txt" for name in d.sample(PEOPLE, length + 3)]
    code = d.code()
    for here, there in pairwise(names[:length]):
        d.put(here, f"The code is not here any more. It is in {there.rpartition('/')[2]}.\n")
    d.put(names[length - 1], f"The code is {code}.\n")
    for other in names[length:]:
        d.put(other, f"The code was {d.code()} once. No longer.\n")
    reply, change = answered(code)
    looks = [run(f"cat {name}") for name in names[:length]]
    return goal(f"What is the code to which {names[0]} leads?", [*looks, reply], [change])


def _services_of_team(d: Disk) -> Goal:
    folder = d.folder("deploy")
    team, setting, value = d.rng.choice(REGIONS), d.rng.choice(SETTINGS).upper(), d.rng.randint(100, 9000)
    rows, chosen = [], []
    for n, name in enumerate(d.sample(SERVICES, d.scaled(4, 11))):
        own = team if n % 3 == 0 else d.rng.choice([each for each in REGIONS if each != team])
        rows.append(f"{name},{own}")
        path = f"{folder}/{name}/.env"
        old = d.rng.randint(10, 90)
        text = "NAME={}\n{}={}\nDEBUG=0\n"
        d.put(path, text.format(name, setting, old))
        if own == team:
            chosen.append(path)
            d.want(path, text.format(name, setting, value))
    d.put(f"{folder}/owners.csv", lines(["service,team", *rows]))
    prompt = (
        f"Set {setting} to {value} in the file .env of each service below {folder} that belongs to the team {team} by "
        f"{folder}/owners.csv. Other lines stay"
    )
    change = f"sed -i 's/^{setting}=.*/{setting}={value}/' {' '.join(chosen)}"
    return goal(prompt, [run(f"grep ,{team}$ {folder}/owners.csv"), run(change)], [])


def _value_in_force(d: Disk) -> Goal:
    folder = d.folder("conf")
    setting = d.rng.choice(SETTINGS)
    service, *others = d.sample(SERVICES, 3)
    values = d.rng.sample(range(10, 900), 5)
    d.put(
        f"{folder}/ORDER.txt",
        "A setting of a service is taken from local.conf, else from the file of its group, else from common.conf.\n",
    )
    group = d.rng.choice(REGIONS)
    d.put(
        f"{folder}/groups.txt", lines([f"{service} {group}", *(f"{name} {d.rng.choice(REGIONS)}" for name in others)])
    )
    d.put(f"{folder}/common.conf", lines([f"{setting} = {values[0]}", "verbose = 0"]))
    place = d.rng.randrange(3)
    for n, region in enumerate(REGIONS):
        has = region != group or place >= 1
        d.put(f"{folder}/{region}.conf", lines(([f"{setting} = {values[1] + n}"] if has else []) + ["verbose = 1"]))
    rows = [f"{others[0]}.{setting} = {values[2]}"] + ([f"{service}.{setting} = {values[3]}"] if place == 2 else [])
    d.put(f"{folder}/local.conf", lines(sorted(rows)))
    value = (values[0], values[1] + REGIONS.index(group), values[3])[place]
    reply, change = answered(value)
    looks = [run(f"cat {folder}/ORDER.txt {folder}/groups.txt"), run(f"grep -n {setting} {folder}/*.conf")]
    return goal(
        f"Which value of {setting} is in force for the service {service}? {folder}/ORDER.txt has the order",
        [*looks, reply],
        [change],
    )


def _replace_person(d: Disk) -> Goal:
    folder = d.folder("teams")
    team = d.rng.choice(REGIONS)
    gone, new, *others = d.sample(PEOPLE, 8)
    for n, region in enumerate(REGIONS):
        people = [*d.sample(others, 2), gone] if region == team or n % 2 else d.sample(others, 3)
        d.put(f"{folder}/{region}.txt", lines([f"- {name}" for name in sorted(people)]))
    d.put(f"{folder}/leaving.txt", f"{gone} leaves the team {team}, and stays in all others. {new} follows.\n")
    text = d.before[f"{folder}/{team}.txt"].content
    assert isinstance(text, bytes)
    d.want(f"{folder}/{team}.txt", text.decode().replace(f"- {gone}\n", f"- {new}\n"))
    prompt = f"Do what {folder}/leaving.txt says: put the new name in the line of the old one"
    change = f"sed -i 's/^- {gone}$/- {new}/' {folder}/{team}.txt"
    return goal(prompt, [run(f"cat {folder}/leaving.txt"), run(change)], [])


FAMILIES = (
    Kind("follow-the-notes", "trails", 3, ("answer", "hops"), _follow),
    Kind("settings-of-a-team", "trails", 2, ("many", "hops"), _services_of_team),
    Kind("value-in-force", "trails", 3, ("answer", "hops"), _value_in_force),
    Kind("replace-a-person", "trails", 2, ("hops",), _replace_person),
)
