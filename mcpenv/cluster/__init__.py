"""Several workers that are one server (``mcpenv run --workers N``). With one worker nothing of this is in use.

A *hub* accepts every connection and gives it to a worker, keeps the slots, and knows which worker has what; a *worker*
is a process with an event loop, an environment's source and the sessions that were made in it. In the order in which
data flows:

    supervisor    starts the hub and the workers, and workers that died anew
    hub           what is one for the whole server
    entrance      accepts connections, looks at their first request, passes them on
    belonging     which worker a request belongs to, by its head
    worker        serves connections that it was given
    forwarding    passes a request on that belongs to another worker
    tunnel        carries it there: ASGI over a Unix socket
    channel       calls between hub and workers; frames beneath both
    tag           the worker's name in the ids that it makes
"""
