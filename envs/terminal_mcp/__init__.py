"""Terminal: a folder of files, a shell, and tasks for both."""
