"""A package in the form of inspect-evals: an airline with two tables, a telephone company with a phone, and a bank."""

import gzip
import json
from pathlib import Path

CODE = {
    "__init__": "raise RuntimeError('this would import all of Inspect')",
    "tau2/__init__": "raise RuntimeError('and so would this')",
    "tau2/utils": """
import toml, yaml
from inspect_ai.model import Content, ContentText
""",
    "tau2/data_model/tasks": """
from pydantic import BaseModel
class UserScenario(BaseModel):
    persona: str | None = None
    instructions: dict | str
    def __str__(self):
        return f"Instructions: {self.instructions}"
""",
    "tau2/airline/data_model": """
from typing import Literal
from pydantic import BaseModel, Field
import inspect_evals.tau2.utils
class User(BaseModel):
    name: str
    bonus: float = 0.0
    flights: list[str] = []
class Flight(BaseModel):
    seats: int
class Extra(BaseModel):
    kind: Literal["meal", "bag"] = Field(description="What it is.")
    count: int = 1
class FlightDB(BaseModel):
    users: dict[str, User] = {}
    flights: dict[str, Flight] = {}
""",
    "tau2/airline/AirlineAgentTools": """
from inspect_ai.tool import ToolError
from inspect_ai.util import StoreModel, store_as
from pydantic import Field
from inspect_evals.tau2.airline.data_model import FlightDB
class AirlineAgentTools(StoreModel):
    db: FlightDB = Field(default_factory=FlightDB)
    initialized: bool = False
    def initialize(self):
        assert self.initialized
    def user(self, name):
        if name not in self.db.users:
            raise ToolError(f"User {name} not found")
        return self.db.users[name]
def held():
    tools = store_as(AirlineAgentTools, "AirlineTools")
    tools.initialize()
    return tools
""",
    "tau2/airline/tools": """
from typing import Any
from inspect_ai.tool import Tool, tool
from inspect_evals.tau2.airline.AirlineAgentTools import held
from inspect_evals.tau2.airline.data_model import Extra
@tool
def get_user() -> Tool:
    async def execute(user: str) -> str:
        \"\"\"Reads a user.
        All of it.

        Args:
            user: Whom,
                by id.

        Returns:
            The user.
        \"\"\"
        return held().user(user).model_dump_json()
    return execute
@tool
def add_bonus() -> Tool:
    async def execute(user: str, amount: float, extras: list[Extra | dict[str, Any]] = []) -> str:
        \"\"\"Gives a bonus.

        Args:
            user: Whom.
            amount: How much.
        \"\"\"
        found = held().user(user)
        found.bonus += amount
        if amount < 0:
            held().user("nobody")
        return "done"
    return execute
@tool
def seats_left() -> Tool:
    async def execute() -> str:
        \"\"\"Counts seats.\"\"\"
        return str(sum(flight.seats for flight in held().db.flights.values()))
    return execute
@tool
def transfer_to_human_agents() -> Tool:
    async def execute(summary: str) -> str:
        \"\"\"Hands over.\"\"\"
        return "Transfer successful"
    return execute
all_airline_tools = [get_user, add_bonus, seats_left, transfer_to_human_agents]
""",
    "tau2/telecom/data_model": """
from pydantic import BaseModel
class TelecomDB(BaseModel):
    lines: list[str] = []
    roaming: bool = False
""",
    "tau2/telecom/user_data_model": """
from pydantic import BaseModel
class TelecomUserDB(BaseModel):
    airplane: bool = False
    may_roam: bool = False
""",
    "tau2/telecom/TelecomAgentTools": """
from inspect_ai.util import StoreModel
from pydantic import Field
from inspect_evals.tau2.telecom.data_model import TelecomDB
class TelecomAgentTools(StoreModel):
    db: TelecomDB = Field(default_factory=TelecomDB)
    initialized: bool = False
    def assert_roaming(self, expected):
        return self.db.roaming == expected
""",
    "tau2/telecom/TelecomUserTools": """
from inspect_ai.util import StoreModel
from pydantic import Field
from inspect_evals.tau2.telecom.user_data_model import TelecomUserDB
class TelecomUserTools(StoreModel):
    db: TelecomUserDB = Field(default_factory=TelecomUserDB)
    initialized: bool = False
    def break_it(self):
        self.db.airplane = True
    def assert_online(self):
        return not self.db.airplane and self.db.may_roam
""",
    "tau2/telecom/environment": """
from inspect_ai.util import store_as
from inspect_evals.tau2.telecom.TelecomAgentTools import TelecomAgentTools
from inspect_evals.tau2.telecom.TelecomUserTools import TelecomUserTools
class Environment:
    def __init__(self, user_tools, tools):
        self.user_tools, self.tools = user_tools, tools
        user_tools.db.may_roam = tools.db.roaming
def get_environment():
    return Environment(store_as(TelecomUserTools, "u"), store_as(TelecomAgentTools, "a"))
""",
    "tau2/telecom/tools": """
from inspect_ai.tool import Tool, tool
from inspect_evals.tau2.telecom.environment import get_environment
@tool
def enable_roaming() -> Tool:
    async def execute() -> str:
        \"\"\"Lets the line roam.\"\"\"
        get_environment().tools.db.roaming = True
        return "on"
    return execute
all_telecom_agent_tools = [enable_roaming]
""",
    "tau2/telecom/user_tools": """
from inspect_ai.tool import Tool, tool
from inspect_evals.tau2.telecom.environment import get_environment
@tool
def toggle_airplane_mode() -> Tool:
    async def execute() -> str:
        \"\"\"Turns it on or off.\"\"\"
        phone = get_environment().user_tools.db
        phone.airplane = not phone.airplane
        return f"airplane mode {phone.airplane}"
    return execute
@tool
def check_status_bar() -> Tool:
    async def execute() -> str:
        \"\"\"Shows the icons.\"\"\"
        return f"bar {get_environment().user_tools.db}"
    return execute
all_telecom_user_tools = [toggle_airplane_mode, check_status_bar]
""",
    "tau2/banking/data_model": """
import re
from pydantic import BaseModel, Field
class DatabaseTable(BaseModel):
    data: dict[str, dict] = {}
class TransactionalDB(BaseModel):
    credits: DatabaseTable = Field(default_factory=DatabaseTable)
    agent_discoverable_tools: DatabaseTable = Field(default_factory=DatabaseTable)
""",
    "tau2/banking/BankingAgentTools": """
import json
from inspect_ai.util import StoreModel, store_as
from pydantic import Field
from inspect_evals.tau2.banking.data_model import TransactionalDB
class BankingAgentTools(StoreModel):
    db: TransactionalDB = Field(default_factory=TransactionalDB)
    initialized: bool = False
    def get_balance_1(self, account):
        return f"balance of {account}"
    def apply_credit_2(self, account, amount):
        if amount < 0:
            return "Error: refused"
        self.db.credits.data[f"{account}_{amount}"] = {"amount": amount}
        return "done"
    def used(self, name, arguments):
        result = getattr(self, name)(**json.loads(arguments))
        self.db.agent_discoverable_tools.data.setdefault(name, {"status": "CALLED"})
        return result
def held():
    return store_as(BankingAgentTools, "BankingTools")
""",
    "tau2/banking/tools": """
from inspect_ai.tool import Tool, tool
from inspect_evals.tau2.banking.BankingAgentTools import held
@tool
def banking_call_discoverable_agent_tool() -> Tool:
    async def execute(agent_tool_name: str, arguments: str = "{}") -> str:
        \"\"\"Calls an unlocked tool.\"\"\"
        return held().used(agent_tool_name, arguments)
    return execute
@tool
def banking_list_discoverable_agent_tools() -> Tool:
    async def execute() -> str:
        \"\"\"Lists what was called.\"\"\"
        return ", ".join(held().db.agent_discoverable_tools.data)
    return execute
@tool
def banking_grep() -> Tool:
    async def execute(pattern: str) -> str:
        \"\"\"Searches.\"\"\"
        return "nothing"
    return execute
all_banking_agent_tools = [banking_call_discoverable_agent_tool, banking_list_discoverable_agent_tools]
""",
    "tau2/banking/BankingUserTools": """
from inspect_ai.util import StoreModel
from pydantic import Field
from inspect_evals.tau2.banking.data_model import TransactionalDB
class BankingUserTools(StoreModel):
    db: TransactionalDB = Field(default_factory=TransactionalDB)
    initialized: bool = False
""",
    "tau2/banking/user_tools": "all_banking_user_tools = []",
}


def call(name: str, who: str = "assistant", **arguments: object) -> dict:
    return {"action_id": name, "requestor": who, "name": name, "arguments": arguments}


def task(name: str, actions: list, *, told: object = None, **criteria: object) -> dict:
    told = told or {
        "reason_for_call": f"You want {name}.",
        "known_info": "You are ann.",
        "task_instructions": "Be kind.",
    }
    start = criteria.pop("start", None)
    return {
        "id": name, "user_scenario": {"instructions": told}, "initial_state": start,
        "evaluation_criteria": {"actions": actions, **criteria},
    }  # fmt: skip


def unlocked(name: str, arguments: str) -> dict:
    return call("call_discoverable_agent_tool", agent_tool_name=name, arguments=arguments)


AIRLINE = [
    task("0", [call("get_user", user="ann"), call("add_bonus", user="ann", amount=5)], communicate_info=["1200"]),
    task("1", [call("get_user", user="ann")], communicate_info=[]),  # solved by doing nothing
    task("2", [call("get_user", user="sue"), call("add_bonus", user="ann", amount=-2)]),  # both fail, one after writing
    task("3", [call("transfer_to_human_agents", summary="")], reward_basis=["ACTION"]),
    task("4", [], nl_assertions=["The agent is kind."], reward_basis=["DB", "NL_ASSERTION"], communicate_info=["7"]),
]
BROKEN = {"initialization_actions": [{"env_type": "user", "func_name": "break_it", "arguments": {}}]}
ONLINE = [{"env_type": "user", "func_name": "assert_online", "arguments": {}, "assert_value": True}]
TELECOM = [
    task(
        "broken", [call("toggle_airplane_mode", "user"), call("enable_roaming")], start=BROKEN, env_assertions=ONLINE,
        reward_basis=["ENV_ASSERTION", "ACTION"],
    ),
    task("hopeless", [call("enable_roaming")], start=BROKEN, env_assertions=ONLINE, reward_basis=["ENV_ASSERTION"]),
]  # fmt: skip
BANKING = [
    task("credit", [unlocked("apply_credit_2", '{"account": "a", "amount": 5}')], reward_basis=["DB"]),
    task(
        "checked", [unlocked("get_balance_1", '{"account": "a"}'),
        unlocked("apply_credit_2", '{"account": "a", "amount": 5.0}')], reward_basis=["DB"],
    ),
]  # fmt: skip
USERS = {name: {"name": name.title()} for name in ("ann", "bob")}
DATA = {
    "airline/db.json": {"users": USERS, "flights": {"f1": {"seats": 3}, "f2": {"seats": 4}}},
    "airline/tasks.json": AIRLINE,
    "airline/split_tasks.json": {"base": list("01234"), "train": ["0", "3"], "test": ["1", "2", "4"]},
    "banking_knowledge/db.json": {},
    "banking_knowledge/tasks.json": BANKING,
    "telecom/tasks.json": TELECOM,
    "telecom/split_tasks.json": {"base": ["broken", "hopeless"], "train": ["hopeless"], "test": ["broken"]},
}
TEXTS = {
    "domains/airline/policy.txt": "Be an airline.",
    "domains/banking_knowledge/prompts/grep_only.md": "Be a bank.",
    "domains/telecom/main_policy.txt": "Be a telephone company.",
    "domains/telecom/tech_support_manual.txt": "Turn it off and on.",
    "domains/telecom/db.toml": 'lines = ["l1"]',
    "domains/telecom/user_db.toml": "airplane = false",
    "user_simulator/simulation_guidelines.txt": "Play a customer.",
    "user_simulator/simulation_guidelines_tools.txt": "Play a customer with tools.",
}


def write(root: Path) -> Path:
    """Write the package below `root`."""
    base = root / "inspect_evals"
    for name, text in CODE.items():
        file = base / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    data = base / "tau2" / "data"
    for name, content in DATA.items():
        file = data / "domains" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        packed = name == "airline/db.json"  # as the package has it
        (file.with_name("db.json.gz") if packed else file).write_bytes(
            gzip.compress(json.dumps(content).encode()) if packed else json.dumps(content).encode()
        )
    for name, text in TEXTS.items():
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text(text)
    return root
