"""Words from which files are made."""

from __future__ import annotations

PROJECTS = (
    "amber", "birch", "cobalt", "delta", "ember", "falcon", "garnet", "harbor", "indigo", "juniper", "kestrel",
    "linden", "maple", "nimbus", "onyx", "pebble", "quartz", "raven", "saffron", "tundra", "umber", "violet", "willow",
)  # fmt: skip
SERVICES = (
    "billing", "search", "catalog", "mailer", "gateway", "profile", "stock", "rates", "labels", "audit", "media",
    "session",
)  # fmt: skip
PEOPLE = (
    "aisha", "bruno", "chiara", "dmitri", "elif", "farid", "greta", "hugo", "ines", "jonas", "kavya", "lars", "mei",
    "nadia", "oscar", "petra", "rosa", "sven", "tomas", "uma", "viktor", "wanda", "yusuf", "zoe",
)  # fmt: skip
REGIONS = ("north", "south", "east", "west", "coast", "valley")
GOODS = ("lamp", "chair", "kettle", "blanket", "mirror", "shelf", "clock", "basket", "carpet", "stool", "vase", "tray")
PAGES = ("/home", "/cart", "/search", "/login", "/orders", "/help", "/account", "/offers", "/news", "/terms")
TEXTS = ("request served", "cache refreshed", "token renewed", "batch written", "connection reused", "config read")
TROUBLES = ("timeout of the database", "disk is full", "bad gateway", "certificate expired", "queue is full")
VERBS = ("load", "save", "parse", "send", "check", "merge", "build", "fetch", "count", "print")
THINGS = ("rates", "orders", "labels", "users", "report", "totals", "prices", "events", "pages", "quotes")
SETTINGS = ("timeout_ms", "retries", "pool_size", "cache_ttl_s", "batch_size", "max_items", "page_size")
JOBS = ("backup", "cleanup", "report", "reindex", "sync", "rotate", "export", "digest", "prune", "mirror")
NOTES = ("minutes of the meeting", "travel plan", "open questions", "price list", "wish list", "old contacts")
