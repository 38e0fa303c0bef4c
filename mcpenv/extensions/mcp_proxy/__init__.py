"""Serve third-party MCP servers as an environment: their tools, with reset, rewards, an end and a record.

    config       read the configuration: the ``mcpServers`` format of MCP hosts, with keys of mcpenv
    target       load what the command line names: a configuration file, a command or a URL
    loop         run all connections of this process on one event loop in a thread
    delivery     note how far a request came, so that failures are told apart
    stdio        the transport to a server that is a process
    process      start a process with pipes, and await its end without a thread
    command      find a server's program once
    sandbox      run a process in bubblewrap
    zygote       fork a Python server from a process that has imported it; its program is in ``inside``
    launcher     the way in which a class starts one server: by command, isolated or forked
    paths        one name for the workspace, in all episodes
    http         the transport to a server at a URL
    caller       the caller of a tool: gets progress, log messages and questions of its server
    upstream     one connection to one server
    workspace    the folder of an episode, made from a template or laid over it
    catalog      merge the tools of several servers into one set, with names, overrides and hashes
    components   offer the resources, prompts and completions of servers to agents
    recycling    reset the servers, and prove that the world is the first one again
    environment  the environment class

Decisions: docs/decisions/023-proxied-servers.md, 024-recycled-servers-with-proof.md.
"""
