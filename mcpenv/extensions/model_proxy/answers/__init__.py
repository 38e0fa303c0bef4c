"""The answers of models, by API: put together from their event streams, and read."""
