"""Reload: the watcher of files, the fork server that it tells of changes, and the generations that this forks."""
