"""Names and quantities, as Kubernetes takes them."""

from __future__ import annotations

import re
from decimal import Decimal

MAX_LABEL = 63
"""Maximum characters of a DNS label."""

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NUMBER = r"([+-]?[0-9]+(?:\.[0-9]*)?|[+-]?\.[0-9]+)"
_SUFFIX = r"(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?[0-9]+)?"
_QUANTITY = re.compile(_NUMBER + _SUFFIX)
_FACTORS = {
    "": Decimal(1),
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)},
    **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", 1)},
    **{letter: Decimal(1000) ** -power for power, letter in enumerate("mun", 1)},
}


def is_dns_label(name: str) -> bool:
    """Return True for an RFC 1123 label: small letters, digits and ``-``, at most 63 characters."""
    return len(name) <= MAX_LABEL and _DNS_LABEL.fullmatch(name) is not None


def is_service_name(name: str) -> bool:
    """Return True for an RFC 1035 label, which begins with a letter."""
    return len(name) <= MAX_LABEL and _SERVICE.fullmatch(name) is not None


def is_dns_subdomain(name: str) -> bool:
    """Return True for an RFC 1123 subdomain: labels with dots between, at most 253 characters."""
    return len(name) <= 253 and all(_DNS_LABEL.fullmatch(part) is not None for part in name.split("."))


def quantity(value: object) -> Decimal | None:
    """Return a quantity, such as 500m or 2Gi, as a number; None if the text is not a quantity."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    found = _QUANTITY.fullmatch(str(value))
    if found is None:
        return None
    number, suffix = Decimal(found[1]), found[2] or ""
    if suffix in _FACTORS:
        return number * _FACTORS[suffix]
    return number.scaleb(int(suffix[1:]))


def name_from(text: str) -> str:
    """Return the closest DNS label to a name: ``corner-shop`` for ``Corner_Shop``. It may be empty."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
