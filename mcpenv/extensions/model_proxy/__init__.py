"""A recording proxy for model endpoints: it forwards requests, and stores them and their answers by episode."""
