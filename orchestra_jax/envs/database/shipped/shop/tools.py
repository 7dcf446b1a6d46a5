"""A shop's tools: customers, products and orders. The rules are in policy.md."""

from orchestra_jax.envs.database.session import Desk, Kind, database_tool


@database_tool(Kind.READ)
def get_order(desk: Desk, order: str) -> str:
    """Shows an order: the product, its state, and where it goes.

    Args:
        order: id, such as O12.
    """
    entry = desk.get("orders", order)
    return f"{desk.get('products', entry['product'])['name']}, {entry['state']}, to {entry['address']}"


@database_tool(Kind.READ)
def find_product(desk: Desk, name: str) -> str:
    """Finds a product by its name: its id, its price, and how many are left.

    Args:
        name: of the product.
    """
    for found, entry in desk.rows("products"):
        if entry["name"].casefold() == name.casefold():
            desk.get("products", found)
            return f"{found} costs {entry['price']} dollars, {entry['left']} left."
    raise ValueError(f"There is no product {name}.")


@database_tool(Kind.READ)
def get_points(desk: Desk, customer: str) -> str:
    """Shows how many points a customer has.

    Args:
        customer: id, such as C12.
    """
    return f"{customer} has {desk.get('customers', customer)['points']} points."


@database_tool(Kind.WRITE)
def place_order(desk: Desk, customer: str, product: str) -> str:
    """Orders one piece of a product to a customer's own address.

    Args:
        customer: id, such as C12.
        product: id, such as G12.
    """
    address, entry = desk.get("customers", customer)["address"], desk.edit("products", product)
    if not entry["left"]:
        raise ValueError(f"{product} is sold out.")
    entry["left"] -= 1
    made = {"customer": customer, "product": product, "state": "open", "address": address}
    desk.insert("orders", desk.new_id("O", customer, product), made)
    return f"ordered for {entry['price']} dollars"


@database_tool(Kind.WRITE)
def cancel_order(desk: Desk, order: str) -> str:
    """Cancels an order that is open; one that was sent can be returned.

    Args:
        order: id, such as O12.
    """
    entry = desk.edit("orders", order)
    if entry["state"] != "open":
        raise ValueError(f"{order} is {entry['state']}.")
    entry["state"] = "cancelled"
    return f"cancelled {desk.get('products', entry['product'])['name']}"


@database_tool(Kind.WRITE)
def return_order(desk: Desk, order: str) -> str:
    """Takes an order back that was sent, and gives the money back.

    Args:
        order: id, such as O12.
    """
    entry = desk.edit("orders", order)
    if entry["state"] != "sent":
        raise ValueError(f"{order} is {entry['state']}.")
    entry["state"] = "returned"
    return f"back {desk.get('products', entry['product'])['price']} dollars"


@database_tool(Kind.WRITE)
def change_address(desk: Desk, order: str, address: str) -> str:
    """Sends an open order to another address.

    Args:
        order: id, such as O12.
        address: number and street.
    """
    entry = desk.edit("orders", order)
    if entry["state"] != "open":
        raise ValueError(f"{order} is {entry['state']}.")
    entry["address"] = address
    return f"goes to {address}"


@database_tool(Kind.GENERIC)
def hand_over(desk: Desk) -> str:
    """Hands the conversation over to a colleague, who is asked nothing else here."""
    return "handed over"
