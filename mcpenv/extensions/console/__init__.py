"""The console: the pages at ``/console``, their sign-in, and nothing of what they read."""
