"""``python -m mcpenv`` is ``mcpenv``."""

from mcpenv.cli import main

if __name__ == "__main__":
    main()
