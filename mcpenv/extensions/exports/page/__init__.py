"""Pages: episodes as one HTML file to share, without a script and without anything that a browser would fetch."""

from .markup import policy
from .overview import Placed
from .page import Overview, episode_page, write_page

__all__ = ["Overview", "Placed", "episode_page", "policy", "write_page"]
