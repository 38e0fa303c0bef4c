"""The description of a server's HTTP routes: ``/openapi.json`` and ``/docs``."""
