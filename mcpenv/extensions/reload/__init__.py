"""Reload: the file watcher, the fork server that it notifies of changes, and the generations that the server forks."""
