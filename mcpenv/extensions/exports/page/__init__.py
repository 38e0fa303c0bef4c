"""Pages: episodes as one HTML file to share, without scripts and external resources."""

from .markup import policy
from .overview import Placed
from .page import Overview, episode_page, write_page

__all__ = ["Overview", "Placed", "episode_page", "policy", "write_page"]
