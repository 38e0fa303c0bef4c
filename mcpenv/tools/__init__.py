"""Tools: definition, registry, signatures, results, access."""
