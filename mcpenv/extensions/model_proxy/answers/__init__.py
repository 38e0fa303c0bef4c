"""The answers of models, by API: assembling them from event streams, and reading them."""
