"""Goals over CSV and JSON: filter, join, convert."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from mcpenv.extensions.generated_worlds import Goal, NoCase, answered

from ..disk import Disk, csv_of, goal, run
from ..names import GOODS, PEOPLE, REGIONS, SERVICES, SETTINGS
from .kind import Kind

ORDERS = ("order", "customer", "item", "region", "amount")


def _orders(d: Disk, customers: list[str]) -> list[tuple[int, str, str, str, int]]:
    number = d.rng.randint(1000, 8000)
    rows = []
    for _ in range(d.scaled(12, 120)):
        number += d.rng.randint(1, 9)
        rows.append(
            (number, d.rng.choice(customers), d.rng.choice(GOODS), d.rng.choice(REGIONS), d.rng.randint(5, 900))
        )
    return rows


def _filter(d: Disk) -> Goal:
    folder = d.folder("data")
    rows = _orders(d, d.sample(PEOPLE, 6))
    region, least = d.rng.choice(REGIONS), d.rng.choice((100, 200, 300))
    at = d.rng.randrange(len(rows))  # so that "or more" and "more than" differ
    rows[at] = (*rows[at][:3], region, least)
    d.put(f"{folder}/orders.csv", csv_of(ORDERS, rows))
    out = f"{folder}/{region}.csv"
    d.want(out, csv_of(ORDERS, [row for row in rows if row[3] == region and row[4] >= least]))
    prompt = (
        f"Write {out} with the header of {folder}/orders.csv and those of its rows that have the region {region} and "
        f"an amount of {least} or more, in their order"
    )
    make = f"awk -F, 'NR == 1 || ($4 == \"{region}\" && $5 >= {least})' {folder}/orders.csv > {out}"
    return goal(prompt, [run(f"head -3 {folder}/orders.csv"), run(make)], [])


def _customers(d: Disk) -> dict[str, tuple[str, str]]:
    names = d.sample(PEOPLE, d.scaled(5, 12))
    keys = d.rng.sample(range(100, 999), len(names))
    return {f"c{key}": (name, d.rng.choice(REGIONS)) for key, name in zip(keys, names, strict=True)}


def _join(d: Disk) -> Goal:
    folder = d.folder("data")
    people = _customers(d)
    rows = _orders(d, list(people))
    d.put(f"{folder}/customers.csv", csv_of(("id", "name", "home"), [(key, *who) for key, who in people.items()]))
    d.put(f"{folder}/orders.csv", csv_of(ORDERS, rows))
    out = f"{folder}/named.csv"
    d.want(out, csv_of(("order", "name", "amount"), [(row[0], people[row[1]][0], row[4]) for row in rows]))
    prompt = (
        f"Write {out} with the header order,name,amount and all rows of {folder}/orders.csv in their order, with the "
        f"name that the customer has in {folder}/customers.csv"
    )
    make = (
        'awk -F, \'NR == FNR {name[$1] = $2; next} FNR == 1 {print "order,name,amount"; next} '
        f'{{print $1 "," name[$2] "," $5}}\' {folder}/customers.csv {folder}/orders.csv > {out}'
    )
    return goal(prompt, [run(f"head -2 {folder}/*.csv"), run(make)], [])


def _best_customer(d: Disk) -> Goal:
    folder = d.folder("data")
    people = _customers(d)
    rows = _orders(d, list(people))
    d.put(f"{folder}/customers.csv", csv_of(("id", "name", "home"), [(key, *who) for key, who in people.items()]))
    d.put(f"{folder}/orders.csv", csv_of(ORDERS, rows))
    totals: Counter[str] = Counter()
    for row in rows:
        totals[row[1]] += row[4]
    (best, most), (_, next_most) = totals.most_common(2)
    if most == next_most:
        raise NoCase
    reply, change = answered(people[best][0])
    look = (
        f"awk -F, 'NR > 1 {{t[$2] += $5}} END {{for (c in t) print t[c], c}}' {folder}/orders.csv | sort -rn | head -2"
    )
    prompt = (
        f"What is the name, by {folder}/customers.csv, of the customer with the highest sum of amounts in "
        f"{folder}/orders.csv?"
    )
    return goal(prompt, [run(look), run(f"grep '^{best},' {folder}/customers.csv"), reply], [change])


def _sum_of_region(d: Disk) -> Goal:
    folder = d.folder("data")
    people = _customers(d)
    rows = _orders(d, list(people))
    region = d.rng.choice(sorted({home for _, home in people.values()}))
    d.put(f"{folder}/customers.csv", csv_of(("id", "name", "home"), [(key, *who) for key, who in people.items()]))
    d.put(f"{folder}/orders.csv", csv_of(ORDERS, rows))
    reply, change = answered(sum(row[4] for row in rows if people[row[1]][1] == region))
    look = (
        f"awk -F, 'NR == FNR {{home[$1] = $3; next}} home[$2] == \"{region}\" {{s += $5}} END {{print s + 0}}' "
        f"{folder}/customers.csv {folder}/orders.csv"
    )
    prompt = (
        f"What is the sum of the amounts in {folder}/orders.csv of all orders of customers whose home in "
        f"{folder}/customers.csv is {region}, whatever the region of the order?"
    )
    return goal(prompt, [run(f"head -2 {folder}/*.csv"), run(look), reply], [change])


def _to_json(d: Disk) -> Goal:
    folder = d.folder("data")
    rows = _orders(d, d.sample(PEOPLE, 6))
    d.put(f"{folder}/orders.csv", csv_of(ORDERS, rows))
    out = f"{folder}/orders.json"
    d.want(out, json.dumps([{"order": row[0], "item": row[2], "amount": row[4]} for row in rows]))
    prompt = (
        f"Convert {folder}/orders.csv to {out}: an array in the order of the rows, of objects with the keys order "
        "(a number), item (a text) and amount (a number)"
    )
    script = (
        "NR > 1 "
        '{printf "%s{\\"order\\": %d, \\"item\\": \\"%s\\", \\"amount\\": %d}", (NR > 2 ? "," : "["), $1, $3, $5} '
        'END {print "]"}'
    )
    return goal(
        prompt, [run(f"head -3 {folder}/orders.csv"), run(f"awk -F, '{script}' {folder}/orders.csv > {out}")], []
    )


def _to_csv(d: Disk) -> Goal:
    folder = d.folder("data")
    rows: list[dict[str, Any]] = [
        {"id": row[0], "buyer": {"name": row[1], "region": row[3]}, "amount": row[4]}
        for row in _orders(d, d.sample(PEOPLE, 6))
    ]
    d.put(f"{folder}/sales.json", json.dumps(rows, indent=1) + "\n")
    out = f"{folder}/sales.csv"
    d.want(out, csv_of(("id", "name", "amount"), [(row["id"], row["buyer"]["name"], row["amount"]) for row in rows]))
    prompt = (
        f"Convert {folder}/sales.json to {out} with the header id,name,amount, where name is the buyer's, in the "
        "same order"
    )
    make = f"(echo id,name,amount; jq -r '.[] | \"\\(.id),\\(.buyer.name),\\(.amount)\"' {folder}/sales.json) > {out}"
    return goal(prompt, [run(f"head -9 {folder}/sales.json"), run(make)], [])


def _dedupe(d: Disk) -> Goal:
    folder = d.folder("data")
    rows = _orders(d, d.sample(PEOPLE, 6))
    doubled = list(rows)
    for row in d.rng.sample(rows, d.scaled(3, 20)):
        doubled.insert(d.rng.randint(doubled.index(row) + 1, len(doubled)), row)
    near = d.rng.choice(rows)  # the same order with another amount is no repetition
    doubled.append((*near[:4], near[4] + 1))
    d.put(f"{folder}/orders.csv", csv_of(ORDERS, doubled))
    d.want(f"{folder}/orders.csv", csv_of(ORDERS, list(dict.fromkeys(doubled))))
    prompt = (
        f"Remove the rows of {folder}/orders.csv that repeat an earlier row in all columns. Leave the others in their"
        " order"
    )
    make = f"awk '!seen[$0]++' {folder}/orders.csv > {folder}/new && mv {folder}/new {folder}/orders.csv"
    return goal(prompt, [run(f"sort {folder}/orders.csv | uniq -d"), run(make)], [])


def _merge(d: Disk) -> Goal:
    folder = d.folder("config")
    base: dict[str, Any] = {name: d.rng.randint(1, 900) for name in d.sample(SETTINGS, 5)}
    base["features"] = {name: d.rng.random() < 0.5 for name in d.sample(GOODS, 4)}
    local: dict[str, Any] = {name: base[name] + 1 for name in d.sample([k for k in base if k != "features"], 2)}
    local["owner"] = d.rng.choice(PEOPLE)
    turned = d.rng.choice(list(base["features"]))
    local["features"] = {turned: not base["features"][turned], "extra": True}
    d.put(f"{folder}/base.json", json.dumps(base, indent=2) + "\n")
    d.put(f"{folder}/local.json", json.dumps(local, indent=2) + "\n")
    out = f"{folder}/merged.json"
    d.want(out, json.dumps({**base, **local, "features": {**base["features"], **local["features"]}}))
    prompt = (
        f"Write {out}: the object of {folder}/base.json, in which each value of {folder}/local.json is added, or "
        "replaces the one of the same name. The two objects features are merged in the same way"
    )
    return goal(
        prompt,
        [run(f"cat {folder}/*.json"), run(f"jq -s '.[0] * .[1]' {folder}/base.json {folder}/local.json > {out}")],
        [],
    )


def _set_in_many(d: Disk) -> Goal:
    folder = d.folder("services")
    setting, other = d.sample(SETTINGS, 2)
    team, value = d.rng.choice(REGIONS), d.rng.randint(1000, 9000)
    names = d.sample(SERVICES, d.scaled(4, 12))
    teams = [team, *(d.rng.choice(REGIONS) for _ in names[1:])]
    chosen = []
    for name, own in zip(names, teams, strict=True):
        path = f"{folder}/{name}.json"
        data = {"name": name, "team": own, "limits": {setting: d.rng.randint(10, 900), other: d.rng.randint(10, 900)}}
        d.put(path, json.dumps(data, indent=2) + "\n")
        if own == team:
            chosen.append(path)
            d.want(path, json.dumps({**data, "limits": {**data["limits"], setting: value}}))  # type: ignore[dict-item]
    prompt = f"In the .json files in {folder} whose team is {team}, set {setting} in the object limits to {value}"
    make = f"for f in {' '.join(chosen)}; do jq '.limits.{setting} = {value}' $f > $f.new && mv $f.new $f; done"
    return goal(prompt, [run(f'grep -l \'"team": "{team}"\' {folder}/*.json'), run(make)], [])


def _missing_ids(d: Disk) -> Goal:
    folder = d.folder("data")
    every = [f"{d.rng.choice(GOODS)}-{n}" for n in d.rng.sample(range(100, 999), d.scaled(15, 80))]
    gone = set(d.rng.sample(every, d.scaled(2, 9)))
    d.put(f"{folder}/expected.txt", "".join(f"{name}\n" for name in every))
    found = [name for name in every if name not in gone] + [f"{d.rng.choice(GOODS)}-{n}" for n in range(10, 14)]
    d.rng.shuffle(found)
    d.put(f"{folder}/found.txt", "".join(f"{name}\n" for name in found))
    out = f"{folder}/missing.txt"
    d.want(out, "".join(f"{name}\n" for name in sorted(gone)))
    prompt = (
        f"Write the lines of {folder}/expected.txt that are not in {folder}/found.txt to {out}, sorted from a to z in "
        "the order of bytes"
    )
    make = f"grep -vxFf {folder}/found.txt {folder}/expected.txt | sort > {out}"
    return goal(prompt, [run(f"wc -l {folder}/*.txt"), run(make)], [])


def _cheapest(d: Disk) -> Goal:
    folder = d.folder("data")
    item = d.rng.choice(GOODS)
    prices = d.rng.sample(range(100, 999), len(REGIONS) * len(GOODS))
    table = {region: {good: prices.pop() for good in GOODS} for region in REGIONS}
    d.put(f"{folder}/prices.json", json.dumps(table, indent=1) + "\n")
    reply, change = answered(min(table, key=lambda region: table[region][item]))
    look = f"jq -r 'to_entries[] | \"\\(.value.{item}) \\(.key)\"' {folder}/prices.json | sort -n | head -2"
    return goal(f"In which region is the {item} cheapest, by {folder}/prices.json?", [run(look), reply], [change])


FAMILIES = (
    Kind("filter-rows", "tables", 1, (), _filter),
    Kind("join-tables", "tables", 2, (), _join),
    Kind("best-customer", "tables", 2, ("answer", "hops"), _best_customer),
    Kind("sum-by-home", "tables", 2, ("answer", "hops"), _sum_of_region),
    Kind("csv-to-json", "tables", 1, (), _to_json),
    Kind("json-to-csv", "tables", 1, (), _to_csv),
    Kind("remove-repeated-rows", "tables", 1, (), _dedupe),
    Kind("merge-settings", "tables", 2, (), _merge),
    Kind("set-in-many-json-files", "tables", 1, ("many",), _set_in_many),
    Kind("missing-lines", "tables", 1, (), _missing_ids),
    Kind("cheapest-region", "tables", 1, ("answer",), _cheapest),
)
