"""Providers start environment servers: as a process of this machine, in a container, on a cluster."""
