"""Programs that run in the processes that providers start. They import nothing of this package."""
