"""The core: one environment instance, its episode, and the one path of every step."""
