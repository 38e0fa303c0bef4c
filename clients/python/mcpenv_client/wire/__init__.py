"""The wire protocol: the frames of ``/ws`` and their state table, without I/O."""
