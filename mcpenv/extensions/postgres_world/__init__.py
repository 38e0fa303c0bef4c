"""An environment's world in a Postgres database."""
