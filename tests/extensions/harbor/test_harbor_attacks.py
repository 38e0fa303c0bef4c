"""Ways for the files of an agent to run in the programs of Harbor's tests, each tried in a sandbox of bubblewrap."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from harbor_tasks import CONFIG, DOCKERFILE, harbor_task

from mcpenv.extensions.harbor.environment import HarborEnvironment

# The reward is 1 if a file of the agent ran: it makes /tmp/evil.
TEST = """#!/bin/bash
{cd}
sh -c : ; bash -c : ; bash -lc : ; bash -ic : ; tool ; tool2
python3 -c 'import json, tool' ; perl -e 'eval {{ require tool }}' ; node -e 'try {{ require("tool") }} catch {{ }}'
curl -s file:///etc/hosts ; echo | gdb -batch -ex quit
git init -q /tmp/repository && cd /tmp/repository && git -c user.name=a -c user.email=a commit -q --allow-empty -m a
sh /var/lib/dpkg/info/tool.postinst ; . $HOME/.profile ; . /etc/profile.d/tool.sh
ls /tmp/evil /pytest.ini /pytest.toml /conftest.py /pyproject.toml /setup.cfg /tox.ini | grep .
echo $((1 - $?)) > /logs/verifier/reward.txt
"""

EVIL = "mkdir -p /tmp/own; echo 'touch /tmp/evil' > /tmp/own/evil.sh; chmod +x /tmp/own/evil.sh; "
IN_PYTHON = "open('/tmp/evil', 'w')"
IN_PERL = "open F, '>/tmp/evil'; 1;"
IN_NODE = "require('fs').writeFileSync('/tmp/evil', '')"

LIBRARY = (
    "printf '#include <fcntl.h>\\nunsigned la_version(unsigned v) {return v;} "
    '__attribute__((constructor)) void a(void) {open("/tmp/evil", O_CREAT, 0644);}\' | cc -shared -fPIC -x c -'
)
"""Makes a library that marks the program that loads it."""

HARMLESS = "echo 'unsigned la_version(unsigned v) {return v;}' | cc -shared -fPIC -x c - -o"
ABSTRACT = ("\\0", "")
SERVER = (
    "setsid python3 -c \"import socket; s = socket.socket(socket.{family}); s.bind('{name}'); s.listen(); "
    "open('/tmp/own/up', 'w'); [s.accept() for _ in iter(int, 1)]\" >/dev/null 2>&1 </dev/null & "
    "until [ -e /tmp/own/up ]; do sleep 0.01; done"
)
CONNECT = "python3 -c \"import socket; socket.socket(socket.{family}).connect('{name}')\" && touch /tmp/evil"


@dataclass(frozen=True)
class Way:
    """A way.

    Attributes:
        command: the command of the agent.
        dockerfile: lines that are added to the task's.
        workdir: the working folder of the task.
        cd: the test's command before all others.
        verifier: lines that are added to ``[verifier]``.
    """

    command: str
    dockerfile: str = ""
    workdir: str = "/app"
    cd: str = "cd /tests"
    verifier: str = ""


HOMES = {
    "home": Way("", ""),
    "home-is-workdir": Way("", "", "/root"),
    "home-below-workdir": Way("", "ENV HOME=/app/home\nRUN mkdir /app/home\n"),
    "home-elsewhere": Way("", "ENV HOME=/srv/me\nRUN mkdir -p /srv/me\n"),
}

OF_HOMES = {
    "bashrc": "cp /tmp/own/evil.sh ~/.bashrc",
    "bash_profile": "cp /tmp/own/evil.sh ~/.bash_profile",
    "profile": "cp /tmp/own/evil.sh ~/.profile",
    "user-site": f"p=$(python3 -m site --user-site); mkdir -p $p; echo \"{IN_PYTHON}\" > $p/usercustomize.py",
    "user-site-pth": f"p=$(python3 -m site --user-site); mkdir -p $p; echo \"import os; {IN_PYTHON}\" > $p/a.pth",
    "curlrc": "echo 'output = /tmp/evil' > ~/.curlrc",
    "curlrc-xdg": "mkdir -p ~/.config; echo 'output = /tmp/evil' > ~/.config/curlrc",
    "gitconfig": "mkdir h; cp /tmp/own/evil.sh h/post-commit; git config --global core.hooksPath $PWD/h",
    "gitconfig-xdg": "mkdir -p h ~/.config/git; cp /tmp/own/evil.sh h/post-commit; "
    "git config --file ~/.config/git/config core.hooksPath $PWD/h",
    "git-template": "mkdir -p t/hooks; cp /tmp/own/evil.sh t/hooks/post-commit; "
    "git config --global init.templateDir $PWD/t",
    "node_modules": f'mkdir -p ~/.node_modules; echo "{IN_NODE}" > ~/.node_modules/tool.js',
    "gdbinit": "echo 'shell touch /tmp/evil' > ~/.gdbinit",
}  # fmt: skip

WAYS = {
    **{
        f"{home}-{name}": Way(command, where.dockerfile, where.workdir)
        for home, where in HOMES.items()
        for name, command in OF_HOMES.items()
        if home == "home" or name in ("bashrc", "user-site")
    },
    "bashrc-of-the-system": Way("cp /tmp/own/evil.sh /etc/bash.bashrc"),
    "profile-of-the-system": Way("mkdir -p /etc/profile.d; cp /tmp/own/evil.sh /etc/profile.d/tool.sh"),
    "gitconfig-of-the-system": Way(
        "mkdir h; cp /tmp/own/evil.sh h/post-commit; git config --system core.hooksPath /app/h"
    ),
    "preload": Way("echo /app/own.so > /etc/ld.so.preload", cd="ls /etc/ld.so.preload && touch /tmp/evil"),
    "sitecustomize-of-the-system": Way(f"echo \"{IN_PYTHON}\" | tee /etc/python3*/sitecustomize.py"),
    "environment": Way("echo BASH_ENV=/tmp/own/evil.sh > /etc/environment"),
    "path": Way("cp /tmp/own/evil.sh /opt/t/bin/tool", "ENV PATH=/opt/t/bin:$PATH\nRUN mkdir -p /opt/t/bin\n"),
    "path-in-the-root-folder": Way("cp /tmp/own/evil.sh /t/bin/tool", "ENV PATH=/t/bin:$PATH\nRUN mkdir -p /t/bin\n"),
    "path-in-the-working-folder": Way("cp /tmp/own/evil.sh bin/tool", "ENV PATH=/app/bin:$PATH\nRUN mkdir bin\n"),
    "path-relative": Way("cp /tmp/own/evil.sh .bin/tool", "ENV PATH=./.bin:$PATH\nRUN mkdir .bin\n", cd="cd /app"),
    "path-by-a-link": Way(
        "cp /tmp/own/evil.sh e/tool; rm -r bin; ln -s e bin", "ENV PATH=/app/bin:$PATH\nRUN mkdir bin e\n"
    ),
    "environment-of-python": Way(
        f"echo \"{IN_PYTHON}\" > /v/lib/tool.py",
        "RUN mkdir -p /v/bin /v/lib; echo 'PYTHONPATH=/v/lib exec python3 -c \"import tool\"' > /v/bin/tool2\n"
        "RUN chmod +x /v/bin/tool2\nENV PATH=/v/bin:$PATH\n",
    ),
    "pythonpath": Way(
        f"echo \"{IN_PYTHON}\" > /srv/p/sitecustomize.py", "RUN mkdir /srv/p\nENV PYTHONPATH=/srv/p\n"
    ),
    "pythonuserbase": Way(
        f"p=$(python3 -m site --user-site); mkdir -p $p; echo \"{IN_PYTHON}\" > $p/usercustomize.py",
        "RUN mkdir /srv/u\nENV PYTHONUSERBASE=/srv/u\n",
    ),
    "perl5lib": Way(f"echo \"{IN_PERL}\" > /srv/p/tool.pm", "RUN mkdir /srv/p\nENV PERL5LIB=/srv/p\n"),
    "node_path": Way(f"echo \"{IN_NODE}\" > /srv/p/tool.js", "RUN mkdir /srv/p\nENV NODE_PATH=/srv/p\n"),
    "node_options": Way(
        f"echo \"{IN_NODE}\" > /srv/p/tool.js",
        "RUN mkdir /srv/p; touch /srv/p/tool.js\nENV NODE_PATH=/srv/p NODE_OPTIONS='-r tool'\n",
    ),
    "pythonpycacheprefix": Way(
        f"export PYTHONPYCACHEPREFIX=/srv/p; f=/tmp/own/mark.py; echo \"{IN_PYTHON}\" > $f; "
        "python3 -c \"import importlib.util as u, json, py_compile as c; f = json.__file__; "
        "c.compile('/tmp/own/mark.py', cfile=u.cache_from_source(f), "
        "invalidation_mode=c.PycInvalidationMode.UNCHECKED_HASH)\"",
        "RUN mkdir /srv/p\nENV PYTHONPYCACHEPREFIX=/srv/p\n",
    ),
    "ld_preload": Way(
        f"{LIBRARY} -o /srv/p/a.so", f"RUN mkdir /srv/p; {HARMLESS} /srv/p/a.so\nENV LD_PRELOAD=/srv/p/a.so\n"
    ),
    "ld_preload-of-two": Way(
        f"{LIBRARY} -o /srv/p/b.so",
        f"RUN mkdir /srv/p; {HARMLESS} /srv/p/a.so; {HARMLESS} /srv/p/b.so\n"
        'ENV LD_PRELOAD="/srv/p/a.so /srv/p/b.so"\n',
    ),
    "ld_audit": Way(
        f"{LIBRARY} -o /srv/p/a.so", f"RUN mkdir /srv/p; {HARMLESS} /srv/p/a.so\nENV LD_AUDIT=/srv/p/a.so\n"
    ),
    "ld_preload-of-the-tests": Way(
        f"{LIBRARY} -o /app/a.so", f"RUN {HARMLESS} /app/a.so\n", verifier='env.LD_PRELOAD = "/app/a.so"'
    ),
    "bash_env-of-the-tests": Way(
        "cp /tmp/own/evil.sh /srv/rc", "RUN touch /srv/rc\n", verifier='env.BASH_ENV = "/srv/rc"'
    ),
    "home-of-the-tests": Way("cp /tmp/own/evil.sh h/.bashrc", "RUN mkdir h\n", verifier='env.HOME = "/app/h"'),
    "path-of-the-tests": Way(
        "cp /tmp/own/evil.sh b/tool", "RUN mkdir b\n", verifier='env.PATH = "/app/b:/usr/bin:/bin"'
    ),
    "ld_library_path": Way(
        f"{LIBRARY} -o /srv/p/libtinfo.so.6", "RUN mkdir /srv/p\nENV LD_LIBRARY_PATH=/srv/p\n"
    ),
    "ld_preload-of-shells": Way(
        f"{LIBRARY} -o /app/a.so; for f in ~/.bashrc ~/.profile /etc/profile /etc/bash.bashrc; do "
        "echo 'export LD_PRELOAD=/app/a.so' >> $f; done; echo LD_PRELOAD=/app/a.so >> /etc/environment"
    ),
    "ld.so.conf": Way(f"{LIBRARY} -o /app/libtinfo.so.6; echo /app > /etc/ld.so.conf.d/0.conf; /sbin/ldconfig"),
    "bash_env": Way("cp /tmp/own/evil.sh .rc", "ENV BASH_ENV=/app/.rc\n"),
    "env": Way("cp /tmp/own/evil.sh .rc", "ENV ENV=/app/.rc\n"),
    "pytest": Way("touch /pytest.ini /pytest.toml /conftest.py /pyproject.toml /setup.cfg /tox.ini"),
    "pytest-in-the-working-folder": Way("touch /pytest.ini /pytest.toml /conftest.py /pyproject.toml", workdir="/"),
    "packages": Way("mkdir -p /var/lib/dpkg/info; cp /tmp/own/evil.sh /var/lib/dpkg/info/tool.postinst"),
    "link-to-the-reward": Way(
        "ln -s /logs/verifier/reward.json out.json; echo 1 > out.json; ln /logs/verifier/reward.json again"
    ),
    "link-to-the-tests": Way(
        "mkdir own; echo 'echo 1 > /logs/verifier/reward.json' > own/test.sh; rm -r /tests; ln -s /app/own /tests"
    ),
    "folder-for-the-reward": Way("mkdir -p /logs/verifier/reward.json /logs/verifier/reward.txt"),
    "process-that-waits-for-the-tests": Way(
        "setsid bash -c 'until [ -e /tests/test.sh ]; do sleep 0.01; done; touch /tmp/evil; "
        "while :; do echo 1 > /logs/verifier/reward.json; done' >/dev/null 2>&1 </dev/null &"
    ),
    "unix-socket": Way(f"{SERVER.format(family='AF_UNIX', name='/app/own.sock')}", cd=CONNECT.format(
        family="AF_UNIX", name="/app/own.sock")),
    "abstract-socket": Way(f"{SERVER.format(family='AF_UNIX', name='own'.join(ABSTRACT))}", cd=CONNECT.format(
        family="AF_UNIX", name="own".join(ABSTRACT))),
    "systemd-timer": Way("mkdir -p ~/.config/systemd/user /etc/systemd/system; printf "
        "'[Timer]\\nOnActiveSec=1\\n' | tee ~/.config/systemd/user/tool.timer /etc/systemd/system/tool.timer; "
        "cp /tmp/own/evil.sh ~/.config/systemd/user/tool.service"),
    "timer": Way("mkdir -p /etc/cron.d /var/spool/cron/crontabs; echo '* * * * * root touch /tmp/evil' | "
    "tee /etc/cron.d/tool /var/spool/cron/crontabs/root"),
}  # fmt: skip


def played(folder: Path, way: Way, command: str) -> float:
    dockerfile = DOCKERFILE.format(image="a") + way.dockerfile
    config = CONFIG.replace("[verifier]\n", f"[verifier]\n{way.verifier}\n") + f'workdir = "{way.workdir}"\n'
    files: dict[str, str | None] = {
        "environment/Dockerfile": dockerfile,
        "tests/test.sh": TEST.format(cd=way.cd),
    }
    with HarborEnvironment.from_folder(harbor_task(folder, files, config=config), base_image="host")() as env:
        env.reset()
        observation = env.call_tool("execute", {"command": EVIL + command})
        assert observation.error is None, observation.error
        return float(env.end().reward)


@pytest.mark.world
@pytest.mark.parametrize("name", WAYS)
def test_no_file_of_an_agent_runs_in_the_tests_by(tmp_path: Path, name: str) -> None:
    if LIBRARY in WAYS[name].command and shutil.which("cc") is None:
        pytest.skip("no compiler of C is installed")
    assert played(tmp_path / "hello", WAYS[name], WAYS[name].command) == 0.0
