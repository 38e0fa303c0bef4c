"""Tasks in the format of Harbor 0.26: read as an environment, and written.

    config       the models of task.toml
    task         read a task directory
    dockerfile   read a Dockerfile, and say what in it needs a container engine
    box          the interface to the container of an episode, or to what stands in for it
    bubblewrap   boxes by bubblewrap, on the system folders of this machine
    engine       run commands of Docker or Podman
    container    boxes by Docker or Podman
    compose_file read a file of several services
    compose      boxes of several services
    left         remove what an episode, or a killed process, has left
    provider     choose one of these, and say what a task needs that it lacks
    environment  the environment class, and the target ``harbor:PATH``
    export       write tasks of an environment as task directories

Decision: docs/decisions/026-harbor-tasks.md.
"""
