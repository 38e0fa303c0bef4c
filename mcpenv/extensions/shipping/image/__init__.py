"""The container image of an environment: its files, its Dockerfile, and the programs that build it."""
