"""Long outputs of tools: kept whole for the episode, cut in the answer, searched and paged by two tools."""
