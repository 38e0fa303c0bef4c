"""The container image of an environment: what is in it, its Dockerfile, and the programs that build it."""
