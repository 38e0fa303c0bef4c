"""OpenEnv's environments, served as they are: each runs in a process of the Python that has OpenEnv.

    target     what on the command line names one, and which Python has it
    process    the process, as this side sees it
    child      the same, as that side sees it: a program that imports OpenEnv and nothing of mcpenv
    adapter    the environment class that stands for one
    tasks      its Task API over HTTP

Decision: docs/decisions/005-openenv-in-a-process-of-its-own.md.
"""
