"""An environment's world in a git repository."""
