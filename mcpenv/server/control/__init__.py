"""The control plane: ``/ws``, its HTTP form, task routes and OpenEnv's JSON-RPC."""
