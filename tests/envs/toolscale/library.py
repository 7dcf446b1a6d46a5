"""A small domain of our own in the form of the authors' repository: a clone with one domain, for the tests."""

import json
from pathlib import Path
from typing import Any

DATA_MODEL = '''
from __future__ import annotations

from typing import Dict, List, Literal, Optional

from pydantic import BaseModel, Field

from tau2.domains.other.utils import OTHER_PATH
from tau2.environment.db import DB


class Member(BaseModel):
    name: str = Field(description="of the member")
    fees: float = 0.0
    loans: List[str] = []


class Book(BaseModel):
    title: str
    status: Literal["in", "out"] = "in"
    since: Optional[str] = None


class LibraryDB(DB):
    """All of it."""

    members: Dict[str, Member] = Field(description="by id")
    books: Dict[str, Book] = Field(description="by id")
'''
TOOLS = '''
import json
from datetime import datetime
from typing import List, Literal, Optional

from loguru import logger

from tau2.domains.library.data_model import Book, LibraryDB, Member
from tau2.environment.toolkit import ToolKitBase, ToolType, is_tool


class LibraryTools(ToolKitBase):
    """Tools of a library."""

    db: LibraryDB

    def __init__(self, db: LibraryDB) -> None:
        super().__init__(db)

    def _member(self, member_id: str) -> Member:
        if member_id not in self.db.members:
            raise ValueError("Member not found")
        return self.db.members[member_id]

    @is_tool(ToolType.READ)
    def get_member(self, member_id: str) -> Member:
        """
        Show a member,
        with all loans.

        Not more.

        Args:
            member_id: The id, such as M1,
                as it stands on the card.

        Returns:
            The member.
        """
        logger.info("looked")
        return self._member(member_id)

    @is_tool(ToolType.READ)
    def find_member(self, name: str) -> str:
        """Find a member by name."""
        for member_id, member in self.db.members.items():
            if member.name == name:
                return member_id
        raise ValueError("Member not found")

    @is_tool(ToolType.READ)
    def list_books(self, status: Optional[Literal["in", "out"]] = None) -> List[str]:
        """List the books."""
        return [key for key in self.db.books if status is None or self.db.books[key].status == status]

    @is_tool(ToolType.WRITE)
    def lend(self, member_id: str, book_id: str) -> Book:
        """Lend a book; the record is made before it is known whether the book is there."""
        member = self._member(member_id)
        member.loans.append(book_id)
        book = self.db.books[book_id]
        if book.status == "out":
            raise ValueError("The book is out")
        book.status, book.since = "out", datetime.utcnow().isoformat(timespec="seconds") + "Z"
        return book

    @is_tool(ToolType.READ)
    def find_book(self, title: str) -> List[Book]:
        """Find books by title."""
        return [book for book in self.db.books.values() if book.title == title]

    @is_tool(ToolType.WRITE)
    def add_fee(self, name: str, amount: float, times: int = 1) -> float:
        """Add a fee by name."""
        for member in self.db.members.values():
            if member.name == name:
                for _ in range(times):
                    member.fees += amount
                return member.fees
        raise ValueError("Member not found")

    @is_tool(ToolType.WRITE)
    def add_book(self, book: Book) -> str:
        """Add a book."""
        key = f"B{len(self.db.books) + 1}"
        self.db.books[key] = Book(**book)
        return key

    @is_tool(ToolType.WRITE)
    def drop_book(self, book_id: str) -> str:
        """Drop a book."""
        del self.db.books[book_id]
        return "Dropped"

    @is_tool(ToolType.WRITE)
    def start_over(self) -> str:
        """Put an empty table in the place of the books."""
        self.db.books = {}
        return "Empty"

    @is_tool(ToolType.WRITE)
    def spoil(self, book_id: str) -> str:
        """Leave what is no book."""
        self.db.books[book_id].status = "lost"
        return "Spoilt"

    @is_tool(ToolType.READ)
    def peek(self, book_id: str) -> str:
        """Says that it only reads."""
        self.db.books[book_id].title = "?"
        return "Peeked"

    @is_tool(ToolType.GENERIC)
    def calculate(self, expression: str) -> str:
        """Calculate."""
        if not all(letter in "0123456789+-*/(). " for letter in expression):
            raise ValueError("Invalid characters in expression")
        return str(eval(expression, {"__builtins__": None}, {}))
'''
POLICY = "# Library policy\n\nThe current time is 2024-05-15 15:00:00 EST.\n\nBe kind.\n"
TABLES: dict[str, Any] = {
    "members": {"M1": {"name": "Ada", "fees": 2}, "M2": {"name": "Bo", "loans": ["B2"]}},
    "books": {"B1": {"title": "Emma"}, "B2": {"title": "Ulysses", "status": "out"}, "B3": {"title": "Dracula"}},
}


def write(folder: Path) -> Path:
    """Write a clone, with the databases where the authors keep them."""
    code = folder / "evaluation/tau2-bench/tau2/domains"
    data = folder / "evaluation/data_dir/tau2/domains/library"
    for path, text in {
        code / "library/data_model.py": DATA_MODEL,
        code / "library/tools.py": TOOLS,
        code / "library/environment.py": "raise RuntimeError('never imported')",
        code / "other/utils.py": "from tau2.utils.utils import DATA_DIR\nOTHER_PATH = DATA_DIR / 'other'\n",
        data / "db.json": json.dumps(TABLES),
        data / "policy.md": POLICY,
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def row(number: int, actions: list[tuple[str, dict[str, Any]]], facts: list[str] | None = None) -> dict[str, Any]:
    """Return a task in the columns of the data set, nulls included."""
    names = {name: None for _, arguments in actions for name in arguments}
    return {
        "id": str(number),
        "description": {"purpose": "", "relevant_policies": None, "notes": None},
        "user_scenario": {
            "persona": None,
            "instructions": {
                "task_instructions": "Ask for it politely.",
                "reason_for_call": "You want something of the library.",
                "known_info": "You are Ada, member M1.",
                "unknown_info": None,
                "domain": "library",
            },
        },
        "initial_state": None,
        "evaluation_criteria": {
            "actions": [
                {"action_id": f"{number}_{place}", "name": name, "arguments": names | arguments}
                for place, (name, arguments) in enumerate(actions)
            ],
            "communicate_info": facts or [],
            "nl_assertions": None,
        },
    }
