"""Words from which systems are made."""

from __future__ import annotations

FIRST = (
    "Aisha", "Bruno", "Chiara", "Dmitri", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kavya", "Lars", "Mei",
    "Nadia", "Oscar", "Petra", "Quinn", "Rosa", "Sven", "Tomas", "Uma", "Viktor", "Wanda", "Yusuf", "Zoe",
)  # fmt: skip
LAST = (
    "Abel", "Brandt", "Costa", "Duarte", "Engel", "Fischer", "Greco", "Holm", "Ito", "Jansen", "Keller", "Lindt",
    "Moreau", "Novak", "Okafor", "Pires", "Rossi", "Sato", "Tran", "Urban", "Vega", "Weber", "Zhou",
)  # fmt: skip
TEAMS = ("commerce", "storefront", "logistics", "identity", "payments-core", "growth", "insights")
APPS = (
    "checkout", "catalog", "search", "pricing", "inventory", "shipping", "invoices", "accounts", "sessions", "loyalty",
    "reviews", "recommendations", "notifications", "returns", "vouchers", "wishlist", "tax", "fraud-check", "labels",
    "subscriptions", "profiles", "offers", "geo", "media",
)  # fmt: skip
DATABASES = ("orders-db", "users-db", "stock-db", "events-db", "ledger-db")
PROVIDERS = ("card-provider", "mail-provider", "map-provider", "sms-provider")
QUEUES = ("orders", "refunds", "emails", "exports", "events", "parcels", "audits")
SETTINGS = {
    "timeout_ms": ("800", "1200", "1500", "2000", "3000"),
    "retries": ("2", "3", "4", "5"),
    "cache_ttl_s": ("60", "120", "300", "600"),
    "region": ("eu-west", "eu-north", "us-east", "us-west"),
    "batch_size": ("50", "100", "200", "500"),
    "log_format": ("json", "plain"),
    "upstream_host": ("core.internal", "edge.internal", "main.internal", "relay.internal"),
}
"""The values of the settings of services."""
SPOILT = {
    "timeout_ms": ("8", "15", "20"),
    "retries": ("-1", "400"),
    "cache_ttl_s": ("-60", "0.0001"),
    "region": ("eu-wset", "us-eats", "eu-nroth"),
    "batch_size": ("-5", "9000000"),
    "log_format": ("josn", "plian"),
    "upstream_host": ("core.intrenal", "edge.intenal", "mian.internal"),
}
"""Values of the same settings with which a service fails."""
FLAGS = ("new-cart", "fast-path", "v2-pricing", "lazy-images", "beta-ranking", "async-mail", "dark-mode", "bulk-api")
JOBS = {"log-cleanup": "15 2 * * *", "report": "0 5 * * *", "reindex": "30 3 * * *", "sync-rates": "0 */6 * * *"}
"""The jobs, and when they run."""
SUMMARIES = (
    "Update dependencies", "Rename a metric", "Tidy the request handler", "Add a field to the answer", "Faster start",
    "New date format", "Rework retries", "Smaller image", "Log the request id", "Rewrite the parser",
)  # fmt: skip
NOISE = ("GET /health 200", "request served", "token refreshed", "config read", "batch written", "connection reused")
REASONS = ("season sale", "audit of the year", "move to another data centre", "launch of a brand")
