"""The benchmarks of mcpenv against other servers, side by side in one run. ``python -m benchmarks``."""
