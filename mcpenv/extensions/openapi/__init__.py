"""An HTTP API as an environment, by its OpenAPI document."""
