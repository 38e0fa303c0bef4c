"""Durable sessions: a journal in a store that servers share, from which another server continues an episode."""
