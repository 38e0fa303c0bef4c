"""Goals over git repositories."""

from __future__ import annotations

import re

from mcpenv.extensions.generated_worlds import Goal, answered

from ..disk import Disk, goal, lines, quoted, run
from ..names import GOODS, PEOPLE, SERVICES, SETTINGS, THINGS, VERBS
from ..repository import AGENT, Commit, Repository
from .kind import Kind


class _Project:
    """A repository with a history, in which each service has a file of settings.

    Args:
        d: the files of the task.
        least, most: the number of commits after the first one, by level.
    """

    def __init__(self, d: Disk, least: int, most: int) -> None:
        self.d, self.folder = d, d.folder("code")
        self.services, self.settings = d.sample(SERVICES, 4), d.sample(SETTINGS, 3)
        self._numbers = d.rng.sample(range(10, 1000), 100)
        self.values = {(service, setting): self.number() for service in self.services for setting in self.settings}
        self._subjects: set[str] = set()
        self.repository = Repository()
        files: dict[str, str | None] = {
            "README.md": f"# {self.folder}\n",
            **{self.path(each): self.text(each) for each in self.services},
        }
        self.commit(files)
        for _ in range(d.scaled(least, most)):
            self.work()

    def number(self) -> int:
        """Return a number that it never had."""
        return self._numbers.pop()

    def path(self, service: str) -> str:
        return f"conf/{service}.conf"

    def text(self, service: str) -> str:
        return lines([f"{setting} = {self.values[service, setting]}" for setting in self.settings])

    def subject(self) -> str:
        """Return a subject that no other commit has."""
        while True:
            made = (
                f"{self.d.rng.choice(VERBS).capitalize()} {self.d.rng.choice(THINGS)} for {self.d.rng.choice(GOODS)}s"
            )
            if made not in self._subjects:
                self._subjects.add(made)
                return made

    def commit(self, changed: dict[str, str | None], branch: str = "", body: str = "") -> Commit:
        return self.repository.commit(self.subject(), self.d.rng.choice(PEOPLE), changed, branch=branch, body=body)

    def set(self, service: str, setting: str, value: int) -> Commit:
        """Add a commit that sets a value."""
        self.values[service, setting] = value
        return self.commit({self.path(service): self.text(service)})

    def work(self, service: str = "") -> Commit:
        """Add a commit that sets some value to a new one."""
        return self.set(service or self.d.rng.choice(self.services), self.d.rng.choice(self.settings), self.number())

    def code(self, branch: str = "") -> Commit:
        """Add a commit that adds a file of source code."""
        name = f"src/{self.d.rng.choice(VERBS)}_{self.d.code().replace('-', '_').lower()}.py"
        return self.commit({name: f"def main():\n    return {self.d.rng.randint(1, 99)}\n"}, branch=branch)

    def goal(self, prompt: str, looks: list[str], change: str, after: Repository, breach: str = "") -> Goal:
        """Demand a state of the repository, to which a command of git leads after some looks."""
        self.d.put_repository(self.folder, self.repository)
        self.d.want_repository(self.folder, after)
        found = [run(each) for each in looks]
        return goal(prompt, [*found, run(change)], [], breach=[run(breach)] if breach else None)

    def git(self, command: str) -> str:
        return f"git -C {self.folder} {command}"


def _find_commit(d: Disk) -> Goal:
    project = _Project(d, 4, 24)
    service, other = d.sample(project.services, 2)
    setting, value = d.rng.choice(project.settings), project.number()
    project.set(other, setting, value)
    wanted = project.set(service, setting, value)
    for _ in range(d.scaled(2, 8)):
        project.work()
    project.set(service, setting, project.number())
    path = project.path(service)
    d.put_repository(project.folder, project.repository)
    reply, change = answered(wanted.subject)
    look = project.git(f"log --format=%s --reverse -S'{setting} = {value}' -- {path}")
    prompt = (
        f"Which commit in the git repository {project.folder} has set {setting} to {value} in {path}? Answer with the "
        "first line of its message"
    )
    return goal(prompt, [run(look), reply], [change])


def _revert(d: Disk) -> Goal:
    project = _Project(d, 3, 20)
    last, *others = project.services
    wrong = project.work(last)
    for _ in range(d.scaled(1, 8)):
        project.work(d.rng.choice(others))
    after = project.repository.copy()
    path = project.path(last)
    after.commit(f'Revert "{wrong.subject}"', AGENT, {path: wrong.parents[0].files[path]})
    prompt = (
        f'Revert the commit "{wrong.subject}" of the git repository {project.folder} by one new commit, with the '
        "message that git revert gives it"
    )
    look = project.git(f"log --format=%H --grep={quoted(f'^{wrong.subject}$')}")
    return project.goal(prompt, [look], project.git(f"revert --no-edit {wrong.id}"), after)


def _restore_deleted(d: Disk) -> Goal:
    project = _Project(d, 2, 10)
    name = d.rng.choice(THINGS)
    path = f"docs/{name}.md"
    text = f"# Plan\n{d.code()}\n"
    project.commit({path: f"# Plan\n{d.code()}\n"})
    project.commit({path: text})
    project.work()
    gone = project.commit({path: None})
    for _ in range(d.scaled(1, 6)):
        project.work()
    message = f"Restore the plan of {name}"
    after = project.repository.copy()
    after.commit(message, AGENT, {path: text})
    prompt = (
        f"The file {path} of the git repository {project.folder} was deleted in a commit. Restore it with its last "
        f'content, and commit that with the message "{message}"'
    )
    change = f"{project.git(f'checkout {gone.id}^ -- {path}')} && {project.git(f'commit -qm {quoted(message)}')}"
    return project.goal(prompt, [project.git(f"log --oneline -- {path}")], change, after)


def _tag_releases(d: Disk) -> Goal:
    project = _Project(d, 1, 3)
    after_names, commands = [], []
    major = d.rng.randint(1, 9)
    for minor in range(d.scaled(3, 8)):
        commit = project.commit({"VERSION": f"{major}.{minor}\n"})
        name = f"v{major}.{minor}"
        if minor % 3 == 1:
            project.repository.tags[name] = commit
        else:
            after_names.append((name, commit))
            commands.append(project.git(f"tag {name} {commit.id}"))
        if minor % 2:
            project.work()
    after = project.repository.copy()
    after.tags |= dict(after_names)
    prompt = (
        f"Each commit of the git repository {project.folder} that changes the file VERSION is a release. Give those "
        f"that have no tag a lightweight tag with the letter v and the version, as the others have, such as v{major}.1"
    )
    look = f"{project.git('log -p --reverse --format=%H -- VERSION')}; {project.git('tag')}"
    return project.goal(prompt, [look], " && ".join(commands), after)


def _delete_merged(d: Disk) -> Goal:
    project = _Project(d, 2, 6)
    repository = project.repository
    merged = []
    names = [f"{d.rng.choice(VERBS)}-{name}" for name in d.sample(GOODS, d.scaled(4, 9))]
    for n, name in enumerate(names):
        own = project.code(name)
        if n % 2 == 0:
            merged.append(name)
            subject = f"Merge branch '{name}'"
            repository.commit(subject, d.rng.choice(PEOPLE), dict(own.files), own)
        if n % 4 == 2:
            project.work()
    after = repository.copy()
    for name in merged:
        del after.branches[name]
    prompt = (
        f"Delete the branches of the git repository {project.folder} whose commits are all in main, and keep main and "
        "those that have others"
    )
    look = project.git("branch --merged main")
    return project.goal(prompt, [look], project.git(f"branch -d {' '.join(merged)}"), after)


def _move_to_branch(d: Disk) -> Goal:
    project = _Project(d, 2, 10)
    repository = project.repository
    base = repository.tip
    for _ in range(d.scaled(1, 4)):
        project.work()
    name = f"{d.rng.choice(VERBS)}-{d.rng.choice(GOODS)}"
    after = repository.copy()
    after.branches |= {name: repository.tip, "main": base}
    prompt = (
        f'In the git repository {project.folder}, the commits of main after "{base.subject}" belong to a branch of '
        f"their own. Make the branch {name} that has them, set main back to that commit, and leave main checked out"
    )
    change = f"{project.git(f'branch {name}')} && {project.git(f'reset -q --hard {base.id}')}"
    return project.goal(prompt, [project.git("log --oneline")], change, after)


def _merge(d: Disk) -> Goal:
    project = _Project(d, 2, 8)
    repository = project.repository
    base = repository.tip
    topic = f"{d.rng.choice(VERBS)}-{d.rng.choice(GOODS)}"
    project.code(topic)
    project.code()
    resolved: dict[str, str | None] = {}
    mine: dict[str, str | None] = {}
    theirs: dict[str, str | None] = {}
    side = d.rng.choice(("main", topic))
    for service in d.sample(project.services, d.scaled(1, 3)):
        path, setting = project.path(service), d.rng.choice(project.settings)
        one, other = d.rng.sample(range(1000, 9000), 2)
        for texts, value in ((mine, one), (theirs, other), (resolved, one if side == "main" else other)):
            texts[path] = re.sub(f"{setting} = .*", f"{setting} = {value}", base.files[path])
    project.commit(theirs, topic)
    project.commit(mine)
    message = f"Merge {topic}"
    after = repository.copy()
    tip = repository.branches[topic]
    added = {path: text for path, text in tip.files.items() if path not in base.files}
    after.commit(message, AGENT, {**added, **resolved}, tip)
    d.put(
        f"{project.folder}.txt",
        f"Merges of {project.folder}: where two branches set the same value, that of {side} holds.\n",
    )
    prompt = (
        f'Merge the branch {topic} into main in the git repository {project.folder}, with the message "{message}". '
        f"{project.folder}.txt has the rule for conflicts"
    )
    looks = [f"cat {project.folder}.txt", f"{project.git(f'merge {topic}')}; {project.git('diff')}"]
    take = "--ours" if side == "main" else "--theirs"
    paths = " ".join(resolved)
    change = (
        f"{project.git(f'checkout -q {take} -- {paths}')} && {project.git(f'add {paths}')} && "
        f"{project.git(f'commit -qm {quoted(message)}')}"
    )
    return project.goal(prompt, looks, change, after)


def _pick_fix(d: Disk) -> Goal:
    project = _Project(d, 2, 8)
    repository, code = project.repository, d.code()
    release = f"release-{d.rng.randint(2, 9)}"
    repository.branches[release] = repository.tip
    for body in d.rng.sample([f"Fixes {code}0", f"Reported in {code}, not fixed", ""], 3):
        project.commit({f"src/{d.rng.choice(VERBS)}_{d.code()[:2].lower()}.py": f"{d.code()}\n"}, body=body)
    path, text = f"src/{d.rng.choice(THINGS)}.py", f"LIMIT = {d.rng.randint(2, 99)}\n"
    fix = project.commit({path: text}, body=f"Fixes {code}")
    for _ in range(d.scaled(1, 6)):
        project.work()
    for _ in range(2):
        project.code(release)
    after = repository.copy()
    above = after.branches[release]
    # By its author, at the time of the agent: the time of an author is not compared.
    after.branches[release] = Commit(
        fix.subject, fix.author, fix.at + 500 * 86400, {**above.files, path: text}, (above,), fix.body
    )
    d.put(f"{project.folder}.txt", f"{code} must also be fixed on the branch {release}.\n")
    prompt = (
        f"Do what {project.folder}.txt asks for in the git repository {project.folder}: the message of the commit that "
        f"fixes it on main has the line that says so. Pick that commit alone, with its message and author, and leave "
        "main checked out"
    )
    looks = [f"cat {project.folder}.txt", project.git(f"log main --format='%H %s' --grep='^Fixes {code}$'")]
    git = project.git
    change = f"{git(f'checkout -q {release}')} && {git(f'cherry-pick {fix.id}')} && {git('checkout -q main')}"
    return project.goal(prompt, looks, change, after)


def _set_and_commit(d: Disk) -> Goal:
    project = _Project(d, 1, 6)
    kept = d.sample(project.services, 1 + d.level // 4)
    project.commit({project.path(each): f"{project.text(each)}# frozen\n" for each in kept})
    setting, value = d.rng.choice(project.settings), d.rng.randint(1000, 9000)
    others = [each for each in project.services if each not in kept]
    for each in others:
        project.values[each, setting] = value
    message = f"Set {setting} to {value}"
    after = project.repository.copy()
    after.commit(message, AGENT, {project.path(each): project.text(each) for each in others})
    prompt = (
        f"Set {setting} to {value} in the files in {project.folder}/conf, and commit that in the git repository "
        f'{project.folder} with the message "{message}"'
    )
    sed = f"sed -i 's/^{setting} = .*/{setting} = {value}/'"
    commit = project.git(f"commit -qam {quoted(message)}")
    paths = " ".join(f"{project.folder}/{project.path(each)}" for each in others)
    looks = ["cat README.txt", f"grep -lx '# frozen' {project.folder}/conf/*"]
    return project.goal(
        prompt, looks, f"{sed} {paths} && {commit}", after, breach=f"{sed} {project.folder}/conf/* && {commit}"
    )


FAMILIES = (
    Kind("find-commit", "git", 1, ("git", "answer"), _find_commit),
    Kind("revert-commit", "git", 1, ("git",), _revert),
    Kind("restore-from-history", "git", 1, ("git",), _restore_deleted),
    Kind("move-to-branch", "git", 1, ("git",), _move_to_branch),
    Kind("tag-releases", "git", 1, ("git", "many"), _tag_releases),
    Kind("delete-merged-branches", "git", 1, ("git", "many"), _delete_merged),
    Kind("merge-with-conflicts", "git", 2, ("git", "hops"), _merge),
    Kind("pick-a-fix", "git", 2, ("git", "hops"), _pick_fix),
    Kind("commit-but-not-frozen", "git", 1, ("git", "many", "trap"), _set_and_commit),
)
