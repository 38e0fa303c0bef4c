"""Tools in the formats of models' APIs, and the calls of models as actions."""
