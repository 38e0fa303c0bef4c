"""Several workers that form one server (``mcpenv run --workers N``). Not used with one worker.

The *hub* accepts every connection and passes it to a worker. It counts the slots, and knows the sessions of each worker
whose ids clients chose. A *worker* is a process with an event loop, an environment's source and its own sessions. The
modules, in the order in which data flows:

    supervisor    starts the hub and the workers, and restarts workers that died
    fork_server   imported by the process that forks the workers
    hub           the state of the whole server
    acceptor      accepts connections, peeks at their first request, passes them to a worker
    routing       routes a request to a worker by its head
    worker        serves the connections that it receives
    membership    asks the hub for what concerns the whole server
    forwarding    forwards requests that belong to another worker
    tunnel        carries a forwarded request over a Unix socket
    channel       calls and notices between the hub and a worker, as frames of JSON
    worker_id     identifies the worker in the ids that it makes
"""
