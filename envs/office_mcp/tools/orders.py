"""The products in stock, and the orders of customers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mcpenv import ToolError
from mcpenv.extensions.generated_worlds import Row

from ..desk import Desk
from .arguments import Id, Rows, Short, Words, clean

Status = Literal["new", "shipped", "delivered", "cancelled"]
Quantity = Annotated[int, Field(ge=1, le=10_000)]


class OrderTools:
    """Tools of products, orders, refunds and purchases."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tools = (
            self.search_products,
            self.get_product,
            self.set_stock,
            self.set_price,
            self.purchase_stock,
            self.search_orders,
            self.get_order,
            self.create_order,
            self.refund_order,
            self.set_order_address,
            self.ship_order,
            self.cancel_order,
        )

    def search_products(self, words: Words = None, supplier: Short | None = None) -> Rows:
        """Find products by words of name or SKU, or by supplier: price in euros, stock, and when to reorder."""
        return self.desk.find("products", like=("name sku", words), supplier=supplier)

    def get_product(self, product: Id) -> Row:
        """Show a product."""
        return self.desk.row("products", product)

    def set_stock(self, product: Id, stock: Annotated[int, Field(ge=0, le=1_000_000)]) -> Row:
        """Correct the number of pieces in stock."""
        return self.desk.update("products", product, stock=stock)

    def set_price(self, product: Id, price: Annotated[float, Field(gt=0, le=100_000, description="Euros")]) -> Row:
        """Change a price."""
        return self.desk.update("products", product, price=round(price, 2))

    def purchase_stock(self, product: Id, quantity: Quantity) -> Row:
        """Order pieces from the product's supplier."""
        self.desk.row("products", product)
        return self.desk.insert("purchases", product=product, quantity=quantity, status="ordered")

    def search_orders(self, account: Id | None = None, status: Status | None = None, product: Id | None = None) -> Rows:
        """Find orders by account, status and product."""
        return self.desk.find("orders", account=account, status=status, product=product)

    def get_order(self, order: Id) -> Row:
        """Show an order with its refunds."""
        return {**self.desk.row("orders", order), "refunds": self.desk.find("refunds", order_id=order)}

    def create_order(self, account: Id, product: Id, quantity: Quantity, address: Short) -> Row:
        """Enter an order of a customer. The total is the quantity times the price."""
        self.desk.row("accounts", account)
        found = self.desk.row("products", product)
        return self.desk.insert(
            "orders",
            account=account,
            product=product,
            quantity=quantity,
            total=round(quantity * found["price"], 2),
            placed=self.desk.today,
            delivered=None,
            address=clean(address, "address"),
            status="new",
        )

    def ship_order(self, order: Id) -> Row:
        """Send an order that is new. The stock of the product falls by its quantity."""
        found = self._new(order)
        product = self.desk.row("products", found["product"])
        if product["stock"] < found["quantity"]:
            raise ToolError(f"There are {product['stock']} pieces in stock, and {found['quantity']} are ordered.")
        self.desk.update("products", product["id"], stock=product["stock"] - found["quantity"])
        return self.desk.update("orders", order, status="shipped")

    def cancel_order(self, order: Id) -> Row:
        """Cancel an order."""
        return self.desk.update("orders", order, status="cancelled")

    def refund_order(
        self,
        order: Id,
        amount: Annotated[float, Field(gt=0, le=1_000_000, description="Euros, at most the order's total")],
        reason: Short,
    ) -> Row:
        """Pay money of an order back."""
        found = self.get_order(order)
        left = round(found["total"] - sum(each["amount"] for each in found["refunds"]), 2)
        if round(amount, 2) > left:
            raise ToolError(f"At most {left} euros of order {order} are left to refund.")
        return self.desk.insert("refunds", order_id=order, amount=round(amount, 2), reason=clean(reason, "reason"))

    def set_order_address(self, order: Id, address: Short) -> Row:
        """Correct the address of an order that is new."""
        self._new(order)
        return self.desk.update("orders", order, address=clean(address, "address"))

    def _new(self, order: int) -> Row:
        found = self.desk.row("orders", order)
        if found["status"] != "new":
            raise ToolError(f"Order {order} is {found['status']}; this can be done with new orders only.")
        return found
