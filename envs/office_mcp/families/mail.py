"""Goals in the mailbox."""

from __future__ import annotations

from .. import names
from .goal import Case, Goal, NoCase, answered, call, family, set_to, unique, where

TEXTS = (
    "Thank you, we will do that.",
    "I will call you tomorrow morning.",
    "Please send me the latest version.",
    "We agree with your proposal.",
    "The meeting room is booked.",
)


@family("mail", 1)
def mail_a_colleague(c: Case) -> Goal:
    """Send a mail of a given text."""
    person, text = c.colleague(), c.say(*TEXTS)
    subject = f"{c.say(*names.TOPICS).capitalize()} {c.code()}"
    return Goal(
        c.say(
            f'Send {c.person(person)} a mail with the subject "{subject}" and the text "{text}"',
            f'Write to {c.person(person)}: subject "{subject}", text "{text}"',
        ),
        [c.find_person(person), call("send_mail", to=person["email"], subject=subject, body=text)],
        [c.sent(person["email"], subject, text)],
    )


@family("mail", 1, "text")
def reply_to_a_mail(c: Case) -> Goal:
    """Answer the mail with a given subject."""
    mail = c.pick(unique(c.rows("mails", folder="inbox"), "subject"))
    text = c.say(*TEXTS)
    return Goal(
        c.say(
            f'Reply to the mail "{mail["subject"]}" with the text "{text}"',
            f'Answer the mail with the subject "{mail["subject"]}": "{text}"',
        ),
        [
            call("search_mails", words=mail["subject"]),
            call("read_mail", mail=mail["id"]),
            call("reply_mail", mail=mail["id"], body=text),
        ],
        [c.sent(mail["sender"], f"Re: {mail['subject']}", text, mail["id"])],
        carriers=[("mails", mail["id"])],
    )


@family("mail", 2, "namesake")
def forward_to_a_role(c: Case) -> Goal:
    """Forward a mail to the head of a department."""
    mail = c.pick(unique(c.rows("mails", folder="inbox"), "subject"))
    head = c.pick(p for p in c.rows("people", role="manager") if p["id"] != c.user["id"])
    return Goal(
        f'Forward the mail "{mail["subject"]}" to the head of {head["department"]}, without a note',
        [
            call("search_mails", words=mail["subject"]),
            call("search_people", words="head", department=head["department"]),
            call("forward_mail", mail=mail["id"], to=head["email"]),
        ],
        [c.sent(head["email"], f"Fwd: {mail['subject']}", mail["body"].strip(), mail["id"])],
        reads=[where("mails", id=mail["id"])],
    )


@family("mail", 2)
def mail_the_manager(c: Case) -> Goal:
    """Write to the manager of a colleague."""
    person = c.pick(p for p in c.rows("people", role="staff") if p["manager"] != c.user["id"])
    manager = c.row("people", person["manager"])
    text, subject = c.say(*TEXTS), f"{c.say(*names.TOPICS).capitalize()} {c.code()}"
    return Goal(
        f'Send the manager of {c.person(person)} a mail with the subject "{subject}" and the text "{text}"',
        [
            c.find_person(person),
            call("get_person", person=manager["id"]),
            call("send_mail", to=manager["email"], subject=subject, body=text),
        ],
        [c.sent(manager["email"], subject, text)],
    )


@family("mail", 1, "many")
def archive_mails_of_a_sender(c: Case) -> Goal:
    """Archive all mails of a sender that are in the inbox."""
    person = c.colleague()
    for _ in range(c.rng.randint(2, 3)):
        topic = c.say(*names.TOPICS)
        c.mail_from(person["email"], f"{topic.capitalize()} {c.code()}", f"About the {topic}.\n{person['name']}")
    mails = list(c.rows("mails", sender=person["email"], folder="inbox"))
    return Goal(
        c.say(
            f"Move all mails from {c.person(person)} that are in the inbox to the archive",
            f"Archive every mail in the inbox that {c.person(person)} has sent",
        ),
        [
            c.find_person(person),
            call("list_mails", sender=person["email"]),
            *(call("move_mail", mail=m["id"], folder="archive") for m in mails),
        ],
        [change for m in mails for change in set_to("mails", m["id"], folder="archive")],
        reads=[where("mails", sender=person["email"])],
    )


@family("mail", 2, "many")
def label_mails_of_an_account(c: Case) -> Goal:
    """Label the mails of a customer's contact."""
    contact = c.pick(unique(c.rows("contacts"), "email"))
    label = c.say("important", "later", "contract", "follow-up").lower()
    for _ in range(c.rng.randint(1, 2)):
        topic = c.say(*names.TOPICS)
        c.mail_from(contact["email"], f"{topic.capitalize()} {c.code()}", f"About the {topic}.\n{contact['name']}")
    mails = c.rows("mails", sender=contact["email"], folder="inbox")
    return Goal(
        f'Give each mail in the inbox from {c.contact(contact)} the label "{label}"',
        [
            call("search_contacts", words=contact["name"]),
            c.find_account(contact["account"]),
            call("list_mails", sender=contact["email"]),
            *(call("label_mail", mail=m["id"], label=label) for m in mails),
        ],
        [change for m in mails for change in set_to("mails", m["id"], label=label)],
        reads=[where("mails", sender=contact["email"]), where("contacts", id=contact["id"])],
    )


@family("mail", 1, "answer")
def count_mails_of_a_sender(c: Case) -> Goal:
    """Say how many mails a colleague has sent."""
    person = c.colleague()
    for _ in range(c.rng.randint(1, 4)):
        topic = c.say(*names.TOPICS)
        c.mail_from(person["email"], f"{topic.capitalize()} {c.code()}", f"About the {topic}.\n{person['name']}")
    reply, change = answered(len(c.rows("mails", sender=person["email"], folder="inbox")))
    return Goal(
        f"How many mails from {c.person(person)} are in the inbox? Answer with the number",
        [c.find_person(person), call("list_mails", sender=person["email"]), reply],
        [change],
        reads=[where("mails", sender=person["email"])],
    )


@family("mail", 2, "answer", "text")
def find_a_figure_in_a_mail(c: Case) -> Goal:
    """Answer with a figure that stands in one of several similar mails."""
    topic, years = (
        c.say("catering", "cleaning", "insurance", "printing"),
        [c.company.today.year, c.company.today.year - 1],
    )
    person, code = c.colleague(), c.code()
    figures = [c.rng.randint(1000, 9000) for _ in years]
    if len({*figures}) < 2:
        raise NoCase
    mails = [
        c.mail_from(
            person["email"], f"{topic.capitalize()} {year} {code}", f"The {topic} in {year} costs {figure} euros."
        )
        for year, figure in zip(years, figures, strict=True)
    ]
    n = c.rng.randrange(2)
    reply, change = answered(figures[n])
    return Goal(
        f"How many euros does the {topic} cost in {years[n]}, according to the mail {code} of {c.person(person)}? "
        "Answer with the number",
        [call("search_mails", words=code), call("read_mail", mail=mails[n]["id"]), reply],
        [change],
        carriers=[("mails", mails[n]["id"])],
    )


@family("mail", 2, "text")
def contact_from_a_signature(c: Case) -> Goal:
    """Enter a new contact, whose data stand in a mail."""
    account = c.pick(c.rows("accounts"))
    name = f"{c.say(*names.FIRST)} {c.say(*names.LAST)}"
    if c.rows("contacts", name=name):
        raise NoCase
    email = f"{name.lower().replace(' ', '.')}@{account['name'].lower().replace(' ', '-')}.example"
    phone, title = f"+31 {c.rng.randint(100, 999)} {c.rng.randint(1000, 9999)}", c.say("buyer", "head of IT", "owner")
    subject = f"Hello from {account['name']} {c.code()}"
    mail = c.mail_from(email, subject, f"I am new here and look after your orders.\n{name}, {title}\n{phone}")
    return Goal(
        f'Enter the sender of the mail "{subject}" as a contact of {account["name"]}: name, title and phone '
        "stand below "
        "the mail, and the address is the sender's",
        [
            call("search_mails", words=subject),
            call("read_mail", mail=mail["id"]),
            c.find_account(account["id"]),
            call("create_contact", account=account["id"], name=name, title=title, email=email, phone=phone),
        ],
        [
            (
                "contacts/*",
                {
                    "id": {"$any": True},
                    "name": name,
                    "account": account["id"],
                    "title": title,
                    "email": email,
                    "phone": phone,
                    "status": "active",
                },
            )
        ],
        carriers=[("mails", mail["id"])],
    )
