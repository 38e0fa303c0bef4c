"""List the tasks of the workspace environment. Most are the files before and the expected changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

REMOVED = {"$removed": True}

CONTACTS = {
    "contacts/ana.txt": "name: Ana Silva\nphone: 555-0101\ncity: Porto\n",
    "contacts/bo.txt": "name: Bo Lind\nphone: 555-0102\ncity: Malmo\n",
    "contacts/chidi.txt": "name: Chidi Eze\nphone: 555-0103\ncity: Lagos\n",
    "contacts/dana.txt": "name: Dana Roth\nphone: 555-0104\ncity: Basel\n",
}
INVOICES = {
    "inbox/invoice-031.txt": "customer: Ana Silva\namount: 120.00\nstatus: paid\n",
    "inbox/invoice-032.txt": "customer: Bo Lind\namount: 75.50\nstatus: open\n",
    "inbox/invoice-033.txt": "customer: Ana Silva\namount: 310.25\nstatus: open\n",
    "inbox/letter.txt": "Dear office,\nthe status of my invoice is unclear to me.\nDana Roth\n",
    "inbox/invoice-034.txt": "customer: Dana Roth\namount: 42.00\nstatus: paid\n",
}
PROJECT = {
    "src/app.py": "from src.mail import send_mail\n\n\ndef main():\n    send_mail('ana@example.com', 'hello')\n",
    "src/mail.py": "def send_mail(to, text):\n    print(to, text)\n",
    "src/report.py": "from src.mail import send_mail\n\n\ndef report(total):\n    send_mail('office', str(total))\n",
    "README.md": "# Mailer\n\nCall `send_mail(to, text)`.\n\n## Licence\n\nMIT\n",
    "config.json": '{\n  "port": 8080,\n  "debug": true,\n  "name": "mailer"\n}\n',
    "CHANGES.md": "# Changes\n\n- 1.1: reports\n- 1.0: first release\n",
}
LOGS = {
    "logs/mon.log": "08:00 INFO start\n08:05 ERROR disk full\n08:06 INFO retry\n08:09 ERROR disk full\n",
    "logs/tue.log": "08:00 INFO start\n09:30 WARN slow disk\n",
    "logs/wed.log": "07:59 INFO start\n10:00 ERROR no network\n",
}
NOTES = {
    "notes/monday.md": "- call Bo\n- TODO order paper\n",
    "notes/tuesday.md": "- TODO pay invoice 032\n- lunch with Ana\n",
    "notes/done.md": "- book room\n",
    "drafts/speech.md": "Dear all,\n\nWelcome.\n",
    "drafts/speech-old.md": "Dear all,\n\nHello.\n",
}

FAMILIES = {"contacts": CONTACTS, "invoices": INVOICES, "project": PROJECT, "logs": LOGS, "notes": NOTES}
"""The files of a task, by its family."""

SEVERAL, WORKED_OUT, CHOSEN = "several changes", "worked out", "chosen"
"""What makes a task harder: several files change, a text must be worked out, or a file be told from others like it."""


def record(contact: str) -> dict[str, str]:
    """Return a contact as an object."""
    return dict(line.split(": ") for line in contact.splitlines())


def call(tool_name: str, **arguments: Any) -> dict[str, Any]:
    """Return one call of a solution."""
    return {"tool_name": tool_name, "arguments": arguments}


def task(
    task_id: str,
    prompt: str,
    files: dict[str, str],
    oracle: list[dict[str, Any]],
    verifier: dict[str, Any],
    split: str = "train",
    tags: Sequence[str] = (),
) -> dict[str, Any]:
    """Return one task: the files at its start, the calls that solve it, the verifier, and what makes it harder."""
    return {
        "id": task_id,
        "split": split,
        "level": 1 + len(tags),
        "family": next(name for name, own in FAMILIES.items() if own is files),
        "tags": list(tags),
        "prompt": prompt,
        "options": {"files": files},
        "limits": {"max_steps": 30},
        "oracle": [call("list_files"), *oracle],
        "verifier": verifier,
    }


def exactly(changes: dict[str, Any]) -> dict[str, Any]:
    """Expect just these changes: ``PATH: {"text": ...}`` for a new file, ``PATH/text`` for another text, `REMOVED`."""
    return {"kind": "expect_exactly", "changes": changes}


def added(text: str) -> dict[str, str]:
    """Return the expected change for a new file."""
    return {"text": text}


def written(path: str, right: str) -> dict[str, Any]:
    """Expect one written file and no other change. ``right`` is an expression of its ``lines`` or its ``data``.

    The agent writes the file, so the code must return False for any other text, and never fail.
    """
    code = f"""
import json

def verify(task, before, after, changes):
    if [path for path in [*before, *after] if path != {path!r} and before.get(path) != after.get(path)]:
        return False
    text = after.get({path!r}, {{}}).get("text", "")
    lines = [line.strip() for line in text.strip().split("\\n")]
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    return {right}
"""
    return {"kind": "python", "code": code.lstrip()}


def moved(path: str, target: str, files: dict[str, str]) -> dict[str, Any]:
    """Return the expected changes for a file that is moved unchanged."""
    return {path: REMOVED, target: {"text": files[path]}}


TASKS: list[dict[str, Any]] = [
    task(
        "new-contact",
        "Bo has moved to Oslo and has the phone number 555-0199 there. Correct his contact.",
        CONTACTS,
        [
            call("read_file", path="contacts/bo.txt"),
            call("write_file", path="contacts/bo.txt", text="name: Bo Lind\nphone: 555-0199\ncity: Oslo\n"),
        ],
        exactly({"contacts/bo.txt/text": "name: Bo Lind\nphone: 555-0199\ncity: Oslo\n"}),
    ),
    task(
        "file-invoices",
        "Move the invoices that are in the inbox to the folder invoices, under the names that they have. Leave "
        "everything else in the inbox.",
        INVOICES,
        [
            call("move_file", source=f"inbox/invoice-{number}.txt", target=f"invoices/invoice-{number}.txt")
            for number in ("031", "032", "033", "034")
        ],
        exactly(
            {
                path: value
                for name in ("031", "032", "033", "034")
                for path, value in moved(f"inbox/invoice-{name}.txt", f"invoices/invoice-{name}.txt", INVOICES).items()
            }
        ),
        tags=[SEVERAL],
    ),
    task(
        "delete-old-draft",
        "There are two drafts of a speech. Delete the old one and rename the other to drafts/welcome.md.",
        NOTES,
        [
            call("delete_file", path="drafts/speech-old.md"),
            call("move_file", source="drafts/speech.md", target="drafts/welcome.md"),
        ],
        exactly({"drafts/speech-old.md": REMOVED, **moved("drafts/speech.md", "drafts/welcome.md", NOTES)}),
        tags=[SEVERAL],
    ),
    task(
        "count-errors",
        "How many lines of the logs are errors (ERROR)? Write the number, and nothing else, to errors.txt.",
        LOGS,
        [call("search", text="ERROR", folder="logs"), call("write_file", path="errors.txt", text="3\n")],
        written("errors.txt", "lines == ['3']"),
        tags=[WORKED_OUT],
    ),
    task(
        "which-day",
        "On which day was the disk slow? Write the name of that day's log file (without its folder) to answer.txt.",
        LOGS,
        [call("search", text="slow"), call("write_file", path="answer.txt", text="tue.log\n")],
        written("answer.txt", "lines == ['tue.log']"),
        tags=[CHOSEN],
    ),
    task(
        "turn-debug-off",
        "Turn debugging off in config.json. The file stays valid JSON, and its other settings stay as they are.",
        PROJECT,
        [
            call("read_file", path="config.json"),
            call("replace_text", path="config.json", old='"debug": true', new='"debug": false'),
        ],
        written("config.json", "data == {'port': 8080, 'debug': False, 'name': 'mailer'} and data['debug'] is False"),
    ),
    task(
        "rename-function",
        "Rename the function send_mail to deliver, everywhere in the folder src. Leave the other files alone.",
        PROJECT,
        [
            call("search", text="send_mail"),
            *(
                call("write_file", path=path, text=PROJECT[path].replace("send_mail", "deliver"))
                for path in ("src/app.py", "src/mail.py", "src/report.py")
            ),
        ],
        exactly(
            {
                f"{path}/text": PROJECT[path].replace("send_mail", "deliver")
                for path in ("src/app.py", "src/mail.py", "src/report.py")
            }
        ),
        tags=[SEVERAL, CHOSEN],
    ),
    task(
        "change-licence",
        "The licence in README.md is now Apache-2.0. Correct it there, and leave every other line as it is.",
        PROJECT,
        [
            call("read_file", path="README.md"),
            call("replace_text", path="README.md", old="MIT", new="Apache-2.0"),
        ],
        exactly({"README.md/text": PROJECT["README.md"].replace("MIT", "Apache-2.0")}),
    ),
    task(
        "add-release",
        'Add release 1.2 to CHANGES.md, as the newest one: its line says "- 1.2: attachments".',
        PROJECT,
        [
            call("read_file", path="CHANGES.md"),
            call("replace_text", path="CHANGES.md", old="- 1.1:", new="- 1.2: attachments\n- 1.1:"),
        ],
        exactly({"CHANGES.md/text": "# Changes\n\n- 1.2: attachments\n- 1.1: reports\n- 1.0: first release\n"}),
    ),
    task(
        "collect-todos",
        "Collect the lines with TODO of all notes in the file todo.txt: one line each, without the dash and the word "
        "TODO before it, in any order. Leave the notes as they are.",
        NOTES,
        [
            call("search", text="TODO", folder="notes"),
            call("write_file", path="todo.txt", text="order paper\npay invoice 032\n"),
        ],
        written("todo.txt", "sorted(lines) == ['order paper', 'pay invoice 032']"),
        tags=[WORKED_OUT],
    ),
    task(
        "phone-list",
        "Write phones.txt: one line for each contact, in the order of their names, with the name, a colon, a space and "
        "the phone number.",
        CONTACTS,
        [
            call("search", text="name:"),
            call("search", text="phone:"),
            call(
                "write_file",
                path="phones.txt",
                text="Ana Silva: 555-0101\nBo Lind: 555-0102\nChidi Eze: 555-0103\nDana Roth: 555-0104\n",
            ),
        ],
        written(
            "phones.txt",
            "lines == ['Ana Silva: 555-0101', 'Bo Lind: 555-0102', 'Chidi Eze: 555-0103', 'Dana Roth: 555-0104']",
        ),
        tags=[WORKED_OUT],
    ),
    task(
        "delete-quiet-logs",
        "Delete the logs of the days on which there was no ERROR.",
        LOGS,
        [call("search", text="ERROR"), call("delete_file", path="logs/tue.log")],
        exactly({"logs/tue.log": REMOVED}),
        tags=[CHOSEN],
    ),
    task(
        "backup-settings",
        "Make a copy of config.json at backup/config.json, and set the port in config.json itself to 9090.",
        PROJECT,
        [
            call("read_file", path="config.json"),
            call("write_file", path="backup/config.json", text=PROJECT["config.json"]),
            call("replace_text", path="config.json", old="8080", new="9090"),
        ],
        exactly(
            {
                "backup/config.json": added(PROJECT["config.json"]),
                "config.json/text": PROJECT["config.json"].replace("8080", "9090"),
            }
        ),
        tags=[SEVERAL],
    ),
    task(
        "mark-paid",
        "Ana Silva has paid the invoice that she had not paid yet. Set its status to paid.",
        INVOICES,
        [
            call("search", text="Ana Silva"),
            call("read_file", path="inbox/invoice-033.txt"),
            call("replace_text", path="inbox/invoice-033.txt", old="status: open", new="status: paid"),
        ],
        exactly({"inbox/invoice-033.txt/text": INVOICES["inbox/invoice-033.txt"].replace("open", "paid")}),
        tags=[CHOSEN],
    ),
    # -- test
    task(
        "open-invoices",
        "What do the open invoices add up to? Write the amount, with two digits after the point, to open.txt.",
        INVOICES,
        [
            call("search", text="status: open"),
            call("read_file", path="inbox/invoice-032.txt"),
            call("read_file", path="inbox/invoice-033.txt"),
            call("write_file", path="open.txt", text="385.75\n"),
        ],
        written("open.txt", "lines == ['385.75']"),
        split="test",
        tags=[WORKED_OUT],
    ),
    task(
        "sort-by-customer",
        "Move each invoice from the inbox to a folder that is called as its customer's first name is, in lower case "
        "(ana/invoice-031.txt). Leave everything else where it is.",
        INVOICES,
        [
            call("search", text="customer:"),
            *(
                call("move_file", source=f"inbox/invoice-{number}.txt", target=f"{name}/invoice-{number}.txt")
                for number, name in (("031", "ana"), ("032", "bo"), ("033", "ana"), ("034", "dana"))
            ),
        ],
        exactly(
            {
                path: value
                for number, name in (("031", "ana"), ("032", "bo"), ("033", "ana"), ("034", "dana"))
                for path, value in moved(
                    f"inbox/invoice-{number}.txt", f"{name}/invoice-{number}.txt", INVOICES
                ).items()
            }
        ),
        split="test",
        tags=[SEVERAL, WORKED_OUT],
    ),
    task(
        "contacts-as-json",
        "Write contacts.json: a JSON array with one object for each contact, with the keys name, phone and city, in "
        "any order. The contacts themselves stay as they are.",
        CONTACTS,
        [
            *(call("read_file", path=path) for path in CONTACTS),
            call(
                "write_file",
                path="contacts.json",
                text=json.dumps([*map(record, CONTACTS.values())]),
            ),
        ],
        written(
            "contacts.json",
            f"isinstance(data, list) and len(data) == {len(CONTACTS)} "
            f"and all(record in data for record in {[*map(record, CONTACTS.values())]!r})",
        ),
        split="test",
        tags=[WORKED_OUT],
    ),
    task(
        "merge-notes",
        "Put the notes of Monday and Tuesday together in notes/week.md, Monday's lines first, and delete the two.",
        NOTES,
        [
            call("read_file", path="notes/monday.md"),
            call("read_file", path="notes/tuesday.md"),
            call("write_file", path="notes/week.md", text=NOTES["notes/monday.md"] + NOTES["notes/tuesday.md"]),
            call("delete_file", path="notes/monday.md"),
            call("delete_file", path="notes/tuesday.md"),
        ],
        exactly(
            {
                "notes/monday.md": REMOVED,
                "notes/tuesday.md": REMOVED,
                "notes/week.md": added(NOTES["notes/monday.md"] + NOTES["notes/tuesday.md"]),
            }
        ),
        split="test",
        tags=[SEVERAL],
    ),
    task(
        "move-function",
        "Move the module src/mail.py to src/lib/mail.py, and correct the imports of it. Change nothing else.",
        PROJECT,
        [
            call("search", text="src.mail"),
            call("move_file", source="src/mail.py", target="src/lib/mail.py"),
            call("replace_text", path="src/app.py", old="from src.mail import", new="from src.lib.mail import"),
            call("replace_text", path="src/report.py", old="from src.mail import", new="from src.lib.mail import"),
        ],
        exactly(
            {
                **moved("src/mail.py", "src/lib/mail.py", PROJECT),
                "src/app.py/text": PROJECT["src/app.py"].replace("src.mail", "src.lib.mail"),
                "src/report.py/text": PROJECT["src/report.py"].replace("src.mail", "src.lib.mail"),
            }
        ),
        split="test",
        tags=[SEVERAL, CHOSEN],
    ),
    task(
        "error-summary",
        "Write errors.txt: for each log with errors one line, in the order of the days, with the name of the file "
        "(without its folder), a space and the number of its ERROR lines.",
        LOGS,
        [
            call("search", text="ERROR"),
            call("write_file", path="errors.txt", text="mon.log 2\nwed.log 1\n"),
        ],
        written("errors.txt", "lines == ['mon.log 2', 'wed.log 1']"),
        split="test",
        tags=[WORKED_OUT],
    ),
]
