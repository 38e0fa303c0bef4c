"""Bring an environment up on a cluster: the commands of its platform, and an episode that proves it."""
