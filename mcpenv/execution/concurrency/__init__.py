"""The lock, the threads, the event loop of blocking calls, and cancellation."""
