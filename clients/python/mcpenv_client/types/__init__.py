"""The types that both ends share: actions, observations, records, tools, tasks."""
