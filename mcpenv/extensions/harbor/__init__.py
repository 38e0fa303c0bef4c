"""Tasks in the format of Harbor 0.25: read as an environment, and written.

    task         read a task directory
    dockerfile   read a Dockerfile, and say what in it needs a container engine
    box          the interface to the container of an episode, or to what stands in for it
    bubblewrap   boxes by bubblewrap, on the system folders of this machine
    container    boxes by Docker or Podman
    provider     choose one of the two, and say what a task needs that it lacks
    environment  the environment class
    target       resolve ``harbor:PATH``
    export       write tasks of an environment as task directories

Decision: docs/decisions/026-harbor-tasks.md.
"""
