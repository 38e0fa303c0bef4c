"""Python verifiers of task files in a sandbox, and bubblewrap for other extensions."""
