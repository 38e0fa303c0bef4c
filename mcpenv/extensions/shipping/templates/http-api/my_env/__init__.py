"""The environment `MyEnv`."""
