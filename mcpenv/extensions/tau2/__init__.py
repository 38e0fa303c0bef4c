"""The tasks of tau2 as environments."""
