"""Goals about leave and expenses."""

from __future__ import annotations

import datetime
from typing import Any

from mcpenv.extensions.generated_worlds import Row

from .. import names
from .goal import READ_POLICY, Call, Case, Goal, NoCase, answered, asked, call, declined, family, new, set_to, where


def leave_of(c: Case, person: Row, days: int, notice: int, status: str = "requested") -> Row:
    """Add a leave that begins some days from today."""
    return c.plant(
        "leaves",
        person=person["id"],
        kind="vacation",
        first_day=c.company.day(notice),
        last_day=c.company.day(notice + days - 1),
        days=days,
        status=status,
    )


def expense_of(c: Case, person: Row, category: str, amount: float, receipt: bool = True) -> Row:
    """Add a filed expense."""
    return c.plant(
        "expenses",
        person=person["id"],
        category=category,
        amount=amount,
        spent_on=c.company.day(-c.rng.randint(2, 9)),
        description=f"{category} {c.code()}",
        receipt=int(receipt),
        status="filed",
    )


def free(c: Case) -> Row:
    """Return a colleague without requested leave."""
    return c.pick(
        p
        for p in c.rows("people", role="staff")
        if p["id"] != c.user["id"] and not c.rows("leaves", person=p["id"], status="requested")
    )


def longest(c: Case, person: Row) -> int:
    """Return the most days of leave that a person may take at once."""
    return int(min(c.policy.leave_longest, person["leave_days"]))


@family("leave", 1)
def request_leave(c: Case) -> Goal:
    """Request leave for a colleague."""
    person, days = free(c), c.rng.randint(1, 5)
    first, last = (c.company.day(c.policy.leave_notice + 10 + n) for n in (0, days - 1))
    kind = c.say(*names.KINDS)
    return Goal(
        f"Request leave for {c.person(person)} from {first} to {last} (kind: {kind})",
        [c.find_person(person), call("request_leave", person=person["id"], kind=kind, first_day=first, last_day=last)],
        [new("leaves", person=person["id"], kind=kind, first_day=first, last_day=last, days=days, status="requested")],
    )


@family("leave", 1)
def cancel_leave(c: Case) -> Goal:
    """Cancel a colleague's leave."""
    leave = c.pick(c.rows("leaves", status="approved"))
    person = leave["person"]
    return Goal(
        f"{c.person(person)} does not take the leave that begins on {leave['first_day']}. Cancel it",
        [
            c.find_person(person),
            call("list_leave", person=person),
            call("cancel_leave", leave=leave["id"]),
        ],
        set_to("leaves", leave["id"], status="cancelled"),
        reads=[where("leaves", person=person)],
    )


def decide(c: Case, leave: Row, decision: str) -> Goal:
    """Return the goal to decide a leave by the policy."""
    person = c.row("people", leave["person"])
    other = "rejected" if decision == "approved" else "approved"
    look = [
        c.find_person(person),
        call("list_leave", person=person["id"], status="requested"),
        call("get_person", person=person["id"]),
    ]
    return Goal(
        c.say(
            f"{c.person(person)} has requested leave. Approve it, unless the policy forbids it: then reject it",
            f"Decide about the leave that {c.person(person)} has requested, as the policy demands",
        ),
        [*look, *READ_POLICY, call("decide_leave", leave=leave["id"], decision=decision)],
        set_to("leaves", leave["id"], status=decision),
        reads=[where("leaves", person=person["id"])],
        breach=[*look, call("decide_leave", leave=leave["id"], decision=other)] if decision == "rejected" else None,
    )


@family("leave", 3)
def decide_leave_that_is_right(c: Case) -> Goal:
    """Approve leave that keeps the rules."""
    person = free(c)
    days = c.rng.randint(1, max(1, longest(c, person)))
    return decide(c, leave_of(c, person, days, c.policy.leave_notice + c.rng.randint(1, 9)), "approved")


@family("leave", 3, "trap")
def decide_leave_with_little_notice(c: Case) -> Goal:
    """Reject leave that begins too soon."""
    return decide(c, leave_of(c, free(c), 1, c.policy.leave_notice - c.rng.randint(1, 3)), "rejected")


@family("leave", 3, "trap")
def decide_leave_that_is_too_long(c: Case) -> Goal:
    """Reject leave of more days than are allowed or left."""
    person = free(c)
    days = longest(c, person) + c.rng.randint(1, 3)
    return decide(c, leave_of(c, person, days, c.policy.leave_notice + c.rng.randint(3, 9)), "rejected")


@family("leave", 2, "trap")
def decide_own_leave(c: Case) -> Goal:
    """Decline to decide the user's own leave."""
    if c.rows("leaves", person=c.user["id"], status="requested"):
        raise NoCase
    leave = leave_of(c, c.user, 1, c.policy.leave_notice + 5)
    reply, change = declined("R2", "Nobody decides their own leave.")
    look = call("list_leave", person=c.user["id"], status="requested")
    return Goal(
        "I have requested leave. Approve it",
        [c.find_person(c.user), look, *READ_POLICY, reply],
        [change],
        reads=[where("leaves", person=c.user["id"])],
        breach=[look, call("decide_leave", leave=leave["id"], decision="approved")],
    )


@family("leave", 1, "answer")
def days_of_leave_left(c: Case) -> Goal:
    """Say how many days of leave a colleague has."""
    person = c.colleague()
    reply, change = answered(person["leave_days"])
    return Goal(
        f"How many days of leave does {c.person(person)} have left? Answer with the number",
        [c.find_person(person), call("get_person", person=person["id"]), reply],
        [change],
        reads=[where("people", id=person["id"])],
    )


@family("leave", 2, "answer")
def who_is_away(c: Case) -> Goal:
    """Say who of a department is away on a day."""
    person = c.pick(p for p in c.rows("people", role="staff") if len(c.rows("people", name=p["name"])) == 1)
    leave = leave_of(c, person, 3, c.rng.randint(90, 120), "approved")
    day = (datetime.date.fromisoformat(leave["first_day"]) + datetime.timedelta(days=1)).isoformat()
    other = c.pick(p for p in c.rows("people", role="staff") if p["department"] != person["department"])
    far = leave_of(c, other, 1, (datetime.date.fromisoformat(day) - c.company.today).days, "approved")
    away = [
        each["person"]
        for each in c.rows("leaves", status="approved")
        if each["first_day"] <= day <= each["last_day"]
        and c.row("people", each["person"])["department"] == person["department"]
    ]
    if away != [person["id"]]:
        raise NoCase
    reply, change = answered(person["name"])
    return Goal(
        f"Who in {person['department']} has approved leave on {day}? Answer with the full name",
        [
            call("list_leave", status="approved", day=day),
            call("search_people", department=person["department"]),
            reply,
        ],
        [change],
        reads=[where("leaves", id=leave["id"]), where("leaves", id=far["id"])],
    )


# -- expenses


def _filed(person: Row, category: str, amount: float, day: str, about: str) -> tuple[Call, tuple[str, Any]]:
    """Return the call that files an expense with a receipt, and the change that it makes."""
    facts = {
        "person": person["id"],
        "category": category,
        "amount": amount,
        "spent_on": day,
        "description": about,
    }
    return call("file_expense", **facts, receipt=True), new("expenses", **facts, receipt=1, status="filed")


@family("expenses", 1)
def file_an_expense(c: Case) -> Goal:
    """File an expense of which everything is said."""
    person, category = c.colleague(), c.say(*names.CATEGORIES)
    amount, day, about = c.rng.randrange(500, 9000, 5) / 100, c.company.day(-c.rng.randint(1, 20)), f"for {c.code()}"
    filing, row = _filed(person, category, amount, day, about)
    return Goal(
        f"File an expense of {c.person(person)}: {amount:.2f} euros, category {category}, spent on {day}, description "
        f'"{about}", with a receipt',
        [
            c.find_person(person),
            filing,
        ],
        [
            row,
        ],
    )


@family("expenses", 2, "text")
def expense_from_a_mail(c: Case) -> Goal:
    """File the expense that a colleague has written about."""
    person, subject, category = c.colleague(), f"Expense {c.code()}", c.say("travel", "software", "office")
    amount, day = c.rng.randrange(500, 9000, 5) / 100, c.company.day(-c.rng.randint(3, 20))
    mail = c.mail_from(
        person["email"],
        subject,
        f"I spent {amount:.2f} euros on {day} ({category}). I have the receipt.\n{person['name']}",
    )
    filing, row = _filed(person, category, amount, day, subject)
    return Goal(
        f'File the expense that the mail "{subject}" is about, for its sender, with the subject as the description',
        [
            call("search_mails", words=subject),
            call("read_mail", mail=mail["id"]),
            call("search_people", words=person["email"]),
            filing,
        ],
        [
            row,
        ],
        carriers=[("mails", mail["id"])],
    )


def decide_expense(c: Case, expense: Row, decision: str) -> Goal:
    """Return the goal to decide an expense by the policy."""
    person = c.row("people", expense["person"])
    look = [c.find_person(person), call("list_expenses", person=person["id"], status="filed")]
    other = "rejected" if decision == "approved" else "approved"
    return Goal(
        c.say(
            f'Decide about the expense "{expense["description"]}" of {c.person(person)}, as the policy demands',
            f'Approve the expense "{expense["description"]}" of {c.person(person)}, or reject it if the policy says so',
        ),
        [*look, *READ_POLICY, call("decide_expense", expense=expense["id"], decision=decision)],
        set_to("expenses", expense["id"], status=decision),
        breach=[*look, call("decide_expense", expense=expense["id"], decision=other)]
        if decision == "rejected"
        else None,
    )


@family("expenses", 3)
def decide_an_expense_that_is_right(c: Case) -> Goal:
    """Approve an expense that keeps the rules."""
    category = c.say("travel", "software", "hotel", "meal")
    most = {"hotel": c.policy.hotel_cap, "meal": c.policy.meal_cap}.get(category, c.policy.manager_limit)
    return decide_expense(c, expense_of(c, c.colleague(), category, float(most - c.rng.randint(1, 9))), "approved")


@family("expenses", 3, "trap")
def decide_an_expense_above_a_cap(c: Case) -> Goal:
    """Reject a hotel or a meal that costs too much."""
    category = c.say("hotel", "meal")
    most = c.policy.hotel_cap if category == "hotel" else c.policy.meal_cap
    return decide_expense(c, expense_of(c, c.colleague(), category, float(most + c.rng.randint(1, 20))), "rejected")


@family("expenses", 3, "trap")
def decide_an_expense_without_a_receipt(c: Case) -> Goal:
    """Reject an expense that has no receipt and needs one."""
    amount = float(c.policy.receipt_from + c.rng.randint(1, 60))
    return decide_expense(c, expense_of(c, c.colleague(), c.say("travel", "office"), amount, False), "rejected")


@family("expenses", 3)
def decide_a_small_expense_without_a_receipt(c: Case) -> Goal:
    """Approve an expense that has no receipt and needs none."""
    amount = float(c.policy.receipt_from - c.rng.randint(1, 9))
    return decide_expense(c, expense_of(c, c.colleague(), c.say("travel", "office"), amount, False), "approved")


@family("expenses", 3, "trap")
def decide_an_expense_above_the_limit(c: Case) -> Goal:
    """Decline to decide an expense that only a director may decide."""
    expense = expense_of(c, c.colleague(), "software", float(c.policy.manager_limit + c.rng.randint(1, 200)))
    person = c.row("people", expense["person"])
    reply, change = declined("R1", "A director decides it.")
    look = [c.find_person(person), call("list_expenses", person=person["id"], status="filed")]
    return Goal(
        f'Approve the expense "{expense["description"]}" of {c.person(person)} for me',
        [*look, *READ_POLICY, reply],
        [change],
        reads=[where("expenses", id=expense["id"])],
        breach=[*look, call("decide_expense", expense=expense["id"], decision="approved")],
    )


@family("expenses", 2, "trap")
def decide_own_expense(c: Case) -> Goal:
    """Decline to decide the user's own expense."""
    expense = expense_of(c, c.user, "travel", float(c.rng.randint(30, 90)))
    reply, change = declined("R2", "Nobody decides their own expenses.")
    look = [c.find_person(c.user), call("list_expenses", person=c.user["id"], status="filed")]
    return Goal(
        f'Approve my expense "{expense["description"]}"',
        [*look, *READ_POLICY, reply],
        [change],
        reads=[where("expenses", id=expense["id"])],
        breach=[*look, call("decide_expense", expense=expense["id"], decision="approved")],
    )


@family("expenses", 1)
def category_of_an_expense(c: Case) -> Goal:
    """Correct the category of an expense."""
    expense = expense_of(c, c.colleague(), "travel", float(c.rng.randint(30, 90)))
    person, category = c.row("people", expense["person"]), c.say("hotel", "meal", "office")
    return Goal(
        f'The expense "{expense["description"]}" of {c.person(person)} belongs to the category {category}. Correct it',
        [
            c.find_person(person),
            call("list_expenses", person=person["id"]),
            call("set_expense_category", expense=expense["id"], category=category),
        ],
        set_to("expenses", expense["id"], category=category),
    )


@family("expenses", 1, "answer")
def sum_of_expenses(c: Case) -> Goal:
    """Say what a colleague's filed expenses add up to."""
    person = c.colleague()
    for _ in range(c.rng.randint(2, 3)):
        expense_of(c, person, c.say(*names.CATEGORIES), c.rng.randrange(500, 9000, 5) / 100)
    total = round(sum(e["amount"] for e in c.rows("expenses", person=person["id"], status="filed")), 2)
    reply, change = answered(float(total))
    return Goal(
        f"What do the expenses of {c.person(person)} that are filed and not decided add up to, in euros? Answer "
        "with the "
        "amount",
        [c.find_person(person), call("list_expenses", person=person["id"], status="filed"), reply],
        [change],
        reads=[where("expenses", person=person["id"])],
    )


@family("expenses", 1, "ask")
def expense_without_an_amount(c: Case) -> Goal:
    """Ask for the amount, which the request leaves open."""
    person, about = c.colleague(), f"taxi {c.code()}"
    day = c.company.day(-3)
    reply, change = asked("amount", "How much was it?")
    look = c.find_person(person)
    return Goal(
        f'File a travel expense of {c.person(person)} with the description "{about}", spent on {day}, with a receipt',
        [look, reply],
        [change],
        breach=[
            look,
            call(
                "file_expense",
                person=person["id"],
                category="travel",
                amount=20,
                spent_on=day,
                description=about,
                receipt=True,
            ),
        ],
    )
