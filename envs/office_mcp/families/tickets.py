"""Goals about tickets."""

from __future__ import annotations

import datetime

from mcpenv.extensions.generated_worlds import Row

from .. import names
from .goal import READ_POLICY, Case, Goal, answered, call, family, new, set_to, where

BY_TIER = {"platinum": "urgent", "gold": "high", "standard": "normal"}
"""The priority of a ticket by the tier of its account, as the policy has it."""


def ticket_of(c: Case, account: int, status: str = "open", opened: int = -3, priority: str = "low") -> Row:
    """Add a ticket with a subject of its own."""
    order = c.pick(c.rows("orders"))
    problem = c.say(*names.PROBLEMS)
    agent = c.pick(p for p in c.rows("people", department="Support") if p["role"] == "staff")
    return c.plant(
        "tickets",
        account=account,
        subject=f"Delivery {problem} {c.code()}",
        body=f"Our delivery {problem}. Please help.",
        priority=priority,
        status=status,
        assignee=agent["id"],
        order_id=order["id"],
        opened=c.company.day(opened),
    )


@family("tickets", 1)
def open_a_ticket(c: Case) -> Goal:
    """Open a ticket of which everything is said."""
    account = c.pick(c.rows("accounts"))
    agent = c.pick(p for p in c.rows("people", department="Support") if p["role"] == "staff")
    subject, priority = (
        f"{c.say(*names.PRODUCTS).capitalize()} {c.say(*names.PROBLEMS)} {c.code()}",
        c.say("low", "high"),
    )
    text = "The customer called about it."
    return Goal(
        f'Open a ticket for {account["name"]} with the subject "{subject}", the text "{text}" and the priority '
        f"{priority}, and assign it to {c.person(agent)}",
        [
            c.find_account(account["id"]),
            c.find_person(agent),
            call(
                "create_ticket",
                account=account["id"],
                subject=subject,
                body=text,
                priority=priority,
                assignee=agent["id"],
            ),
        ],
        [
            new(
                "tickets",
                account=account["id"],
                subject=subject,
                body=text,
                priority=priority,
                status="open",
                assignee=agent["id"],
                order_id=None,
                opened=c.today,
            )
        ],
    )


@family("tickets", 1)
def close_a_ticket(c: Case) -> Goal:
    """Close a ticket by its subject."""
    ticket = ticket_of(c, c.pick(c.rows("accounts"))["id"])
    return Goal(
        c.say(f'Close the ticket "{ticket["subject"]}"', f'The ticket "{ticket["subject"]}" is solved. Close it'),
        [
            call("search_tickets", words=ticket["subject"]),
            call("set_ticket_status", ticket=ticket["id"], status="closed"),
        ],
        set_to("tickets", ticket["id"], status="closed"),
    )


@family("tickets", 2, "namesake")
def assign_a_ticket(c: Case) -> Goal:
    """Assign a ticket to a colleague, perhaps one of two of a name."""
    ticket = ticket_of(c, c.pick(c.rows("accounts"))["id"])
    people = [p for p in c.rows("people") if p["id"] != ticket["assignee"]]
    twice = [p for p in people if len(c.rows("people", name=p["name"])) > 1]
    person = c.pick(twice or people)
    return Goal(
        f'Assign the ticket "{ticket["subject"]}" to {c.person(person)}',
        [
            call("search_tickets", words=ticket["subject"]),
            c.find_person(person),
            call("assign_ticket", ticket=ticket["id"], assignee=person["id"]),
        ],
        set_to("tickets", ticket["id"], assignee=person["id"]),
    )


@family("tickets", 3)
def priority_by_policy(c: Case) -> Goal:
    """Set the priority that the policy demands for the account's tier."""
    account = c.pick(c.rows("accounts"))
    ticket = ticket_of(c, account["id"])
    priority = BY_TIER[account["tier"]]
    return Goal(
        f'Give the ticket "{ticket["subject"]}" the priority that our policy demands for its account',
        [
            call("search_tickets", words=ticket["subject"]),
            call("get_account", account=account["id"]),
            *READ_POLICY,
            call("set_ticket_priority", ticket=ticket["id"], priority=priority),
        ],
        set_to("tickets", ticket["id"], priority=priority),
        reads=[where("accounts", id=account["id"])],
    )


@family("tickets", 2, "text")
def comment_with_the_address(c: Case) -> Goal:
    """Write where the order of a ticket goes."""
    ticket = ticket_of(c, c.pick(c.rows("accounts"))["id"])
    order = c.row("orders", ticket["order_id"])
    return Goal(
        f'Add a comment to the ticket "{ticket["subject"]}": the address of its order, and nothing else',
        [
            call("search_tickets", words=ticket["subject"]),
            call("get_ticket", ticket=ticket["id"]),
            call("get_order", order=order["id"]),
            call("comment_ticket", ticket=ticket["id"], body=order["address"]),
        ],
        [new("comments", ticket=ticket["id"], author=c.user["id"], body=order["address"])],
        reads=[where("orders", id=order["id"])],
        carriers=[("tickets", ticket["id"])],
    )


@family("tickets", 2, "answer")
def count_open_tickets(c: Case) -> Goal:
    """Say how many tickets of an account are open."""
    account = c.pick(c.rows("accounts"))
    for _ in range(c.rng.randint(1, 3)):
        ticket_of(c, account["id"])
    reply, change = answered(len(c.rows("tickets", account=account["id"], status="open")))
    return Goal(
        f"How many tickets of {account['name']} are open? Answer with the number",
        [c.find_account(account["id"]), call("search_tickets", account=account["id"], status="open"), reply],
        [change],
        reads=[where("tickets", account=account["id"])],
    )


@family("tickets", 3)
def oldest_ticket_to_the_owner(c: Case) -> Goal:
    """Assign the oldest open ticket of an account to the account's owner."""
    account = c.pick(c.rows("accounts"))
    ticket_of(c, account["id"], opened=-c.rng.randint(2, 20))
    oldest = ticket_of(c, account["id"], opened=-c.rng.randint(50, 60))
    return Goal(
        f"Assign the oldest open ticket of {account['name']} to the owner of the account",
        [
            c.find_account(account["id"]),
            call("search_tickets", account=account["id"], status="open"),
            call("assign_ticket", ticket=oldest["id"], assignee=account["owner"]),
        ],
        set_to("tickets", oldest["id"], assignee=account["owner"]),
        reads=[where("accounts", id=account["id"]), where("tickets", account=account["id"])],
    )


@family("tickets", 2, "many")
def close_pending_tickets(c: Case) -> Goal:
    """Close all pending tickets of an account."""
    account = c.pick(c.rows("accounts"))
    for _ in range(c.rng.randint(2, 3)):
        ticket_of(c, account["id"], "pending")
    ticket_of(c, account["id"], "open")
    pending = c.rows("tickets", account=account["id"], status="pending")
    return Goal(
        f"Close all tickets of {account['name']} that are pending. Those that are open stay open",
        [
            c.find_account(account["id"]),
            call("search_tickets", account=account["id"], status="pending"),
            *(call("set_ticket_status", ticket=t["id"], status="closed") for t in pending),
        ],
        [change for t in pending for change in set_to("tickets", t["id"], status="closed")],
        reads=[where("tickets", account=account["id"])],
    )


@family("tickets", 3, "text")
def escalate_by_policy(c: Case) -> Goal:
    """Give a ticket that is open for too long to the assignee's manager, or leave one that is not."""
    account = c.pick(c.rows("accounts"))
    late = ticket_of(c, account["id"], opened=-c.policy.ticket_days - c.rng.randint(1, 9))
    soon = ticket_of(c, account["id"], opened=-c.policy.ticket_days + c.rng.randint(1, 4))
    manager = c.row("people", late["assignee"])["manager"]
    pair = sorted((late, soon), key=lambda t: str(t["subject"]))
    policy = c.document(
        f"Escalation {c.code()}",
        f"A ticket that is open for more than {c.policy.ticket_days} days goes to the manager of its assignee.",
    )
    assert datetime.date.fromisoformat(late["opened"]) < c.company.today
    return Goal(
        f'Look at the tickets "{pair[0]["subject"]}" and "{pair[1]["subject"]}". By the rule in the document '
        f'"{policy["title"]}" one of them goes to another person. Assign it; leave the other',
        [
            call("search_documents", words=policy["title"]),
            call("read_document", document=policy["id"]),
            *(call("search_tickets", words=t["subject"]) for t in pair),
            call("get_person", person=late["assignee"]),
            call("assign_ticket", ticket=late["id"], assignee=manager),
        ],
        set_to("tickets", late["id"], assignee=manager),
        reads=[where("tickets", id=soon["id"]), where("documents", id=policy["id"])],
        carriers=[("documents", policy["id"])],
    )


@family("tickets", 2, "text")
def ticket_from_a_mail(c: Case) -> Goal:
    """Open a ticket for what a customer has written."""
    contact = c.pick(c.rows("contacts"))
    order = c.pick(c.rows("orders"))
    agent = c.pick(p for p in c.rows("people", department="Support") if p["role"] == "staff")
    subject = f"Problem {c.code()}"
    mail = c.mail_from(
        contact["email"], subject, f"Order {order['id']} {c.say(*names.PROBLEMS)}. Please help.\n{contact['name']}"
    )
    text = "See the mail."
    return Goal(
        f'Open a ticket for the order that the mail "{subject}" is about. It belongs to the account of the order, has '
        f'the subject of the mail, the text "{text}" and the priority normal, and {c.person(agent)} gets it',
        [
            call("search_mails", words=subject),
            call("read_mail", mail=mail["id"]),
            call("get_order", order=order["id"]),
            c.find_person(agent),
            call(
                "create_ticket",
                account=order["account"],
                subject=subject,
                body=text,
                priority="normal",
                assignee=agent["id"],
                order=order["id"],
            ),
        ],
        [
            new(
                "tickets",
                account=order["account"],
                subject=subject,
                body=text,
                priority="normal",
                status="open",
                assignee=agent["id"],
                order_id=order["id"],
                opened=c.today,
            )
        ],
        carriers=[("mails", mail["id"])],
    )
