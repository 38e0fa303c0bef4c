"""Extensions: what mcpenv does beside authoring, executing, serving and recording. The kernel imports none of them."""
