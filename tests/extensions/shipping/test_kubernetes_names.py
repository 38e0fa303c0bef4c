"""Names and quantities of Kubernetes."""

from __future__ import annotations

from decimal import Decimal

import pytest

from mcpenv.extensions.shipping.kubernetes import names


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        (2, 2),
        (0.5, Decimal("0.5")),
        ("500m", Decimal("0.5")),
        ("1.5", Decimal("1.5")),
        (".5", Decimal("0.5")),
        ("1k", 1000),
        ("1Ki", 1024),
        ("2Gi", 2 * 2**30),
        ("1E", 10**18),
        ("1e3", 1000),
        ("1E3", 1000),
        ("5u", Decimal("0.000005")),
        ("5n", Decimal("0.000000005")),
        ("-1", -1),
    ],
)
def test_a_quantity_is_read_as_kubernetes_reads_it(text: object, value: object) -> None:
    assert names.quantity(text) == value


NO_QUANTITIES: list[object] = ["lots", "", "1 Gi", "1K", "1gi", "1GB", "Gi", "1Gi ", "1.2.3", None, True, [], "0x10"]


@pytest.mark.parametrize("text", NO_QUANTITIES)
def test_what_is_no_quantity_is_none(text: object) -> None:
    assert names.quantity(text) is None


@pytest.mark.parametrize(
    ("name", "label", "service", "subdomain"),
    [
        ("shop", True, True, True),
        ("shop-2", True, True, True),
        ("2shop", True, False, True),
        ("shop.example.org", False, False, True),
        ("Shop", False, False, False),
        ("corner_shop", False, False, False),
        ("-shop", False, False, False),
        ("shop-", False, False, False),
        ("shop..org", False, False, False),
        ("", False, False, False),
        ("s" * 63, True, True, True),
        ("s" * 64, False, False, True),
        ("s" * 254, False, False, False),
        ("shop\n", False, False, False),
    ],
)
def test_names_are_those_of_the_rfcs(name: str, label: bool, service: bool, subdomain: bool) -> None:
    assert names.is_dns_label(name) is label
    assert names.is_service_name(name) is service
    assert names.is_dns_subdomain(name) is subdomain


def test_a_name_is_made_of_an_environments() -> None:
    assert names.name_from("Corner_Shop") == "corner-shop"
    assert names.name_from("__a  b__") == "a-b"
    assert names.name_from("___") == ""
