"""The command line of a Python that reports what was left open.

Not ``-X dev``: that puts asyncio into its debug mode, which writes a line about whatever took a tenth of a second, and
so says how busy the machine is.
"""

import sys

STRICT_PYTHON = (sys.executable, "-W", "default", "-W", "error::ResourceWarning", "-W", "error::RuntimeWarning")
