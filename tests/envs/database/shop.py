"""A shop of two tables and the tools of it, for the tests of database worlds."""

from datetime import UTC, datetime
from typing import Any

from orchestra_jax.envs.database.session import DatabaseTool, Desk, Kind, LocalWorld, database_tool
from orchestra_jax.envs.database.state import Database
from orchestra_jax.types import ToolCall

TABLES: dict[str, dict[str, Any]] = {
    "customers": {"C1": {"name": "Ada", "balance": 10.0}, "C2": {"name": "Bo", "balance": 0.0}},
    "orders": {"O1": {"customer": "C1", "status": "open", "items": ["pen"], "total": 1200.0}},
}


@database_tool(Kind.READ)
def get_customer(desk: Desk, customer: str) -> Any:
    """Shows a customer."""
    return desk.get("customers", customer)


@database_tool(Kind.READ)
def find_customer(desk: Desk, name: str) -> str:
    """Finds a customer by name."""
    for found, entry in desk.rows("customers"):
        if entry["name"] == name:
            return found
    raise ValueError("Nobody has this name.")


@database_tool(Kind.WRITE)
def set_status(desk: Desk, order: str, status: str) -> Any:
    """Changes the status of an order."""
    desk.edit("orders", order)["status"] = status
    return desk.edit("orders", order)


@database_tool(Kind.WRITE)
def pay(desk: Desk, customer: str, amount: float) -> str:
    """Takes money from a balance and keeps a record of it; the record fails first where there is too little."""
    entry = desk.edit("customers", customer)
    entry["balance"] -= amount
    made = desk.new_id("P-", customer, amount)
    desk.insert("orders", made, {"customer": customer, "total": amount, "at": desk.now})
    if entry["balance"] < 0:
        raise ValueError("The balance is too low.")
    return made


@database_tool(Kind.GENERIC)
def hand_over(desk: Desk, summary: str = "") -> str:
    """Hands the conversation over to a human."""
    return "Handed over."


TOOLS = [get_customer, find_customer, set_status, pay, hand_over]


def shop(*more: DatabaseTool) -> LocalWorld:
    return LocalWorld("shop", Database(TABLES), [*TOOLS, *more], datetime(2025, 2, 25, 12, tzinfo=UTC))


def call(tool: str, /, **arguments: Any) -> ToolCall:
    return ToolCall(tool, arguments)
