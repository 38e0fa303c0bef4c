"""A recording proxy for the endpoints of models: it passes requests on, and keeps them and their answers by episode."""
