"""A server that does not start."""

import sys

print("the database is missing", file=sys.stderr)
sys.exit(7)
