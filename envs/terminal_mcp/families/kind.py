"""What a family of goals is here."""

from __future__ import annotations

from mcpenv.extensions.generated_worlds import Family

from ..disk import Disk

Kind = Family[Disk]
"""A kind of goal over files.

Its tags: "answer" (a question), "many" (several files change), "hops" (a file says where to look), "trap" (a rule of
README.txt forbids the obvious), "blanks" (names with blanks), "archive", "git" and "zip" (it needs these programs).
"""
