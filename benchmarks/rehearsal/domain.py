"""A small domain in the form of ToolScale's code and rows, which stands in for a clone of the authors' repository."""

import json
from pathlib import Path
from typing import Any

_NAME = "library"
_DATA_MODEL = """
from typing import Dict, List, Literal

from pydantic import BaseModel, Field

from tau2.environment.db import DB


class Member(BaseModel):
    name: str
    fees: float = 0.0
    loans: List[str] = Field(default_factory=list)


class Book(BaseModel):
    title: str
    status: Literal["in", "out"] = "in"


class LibraryDB(DB):
    members: Dict[str, Member]
    books: Dict[str, Book]
"""
_TOOLS = '''
from tau2.domains.library.data_model import Book, LibraryDB, Member
from tau2.environment.toolkit import ToolKitBase, ToolType, is_tool


class LibraryTools(ToolKitBase):
    db: LibraryDB

    @is_tool(ToolType.READ)
    def get_member(self, member_id: str) -> Member:
        """
        Show a member.

        Args:
            member_id: The id of the member, such as M1.
        """
        if member_id not in self.db.members:
            raise ValueError("Member not found")
        return self.db.members[member_id]

    @is_tool(ToolType.WRITE)
    def lend_book(self, member_id: str, book_id: str) -> Book:
        """
        Lend a book.

        Args:
            member_id: Who takes it.
            book_id: The id of the book, such as B1.
        """
        member, book = self.get_member(member_id), self.db.books[book_id]
        if book.status == "out":
            raise ValueError("The book is out")
        book.status = "out"
        member.loans.append(book_id)
        return book
'''
_POLICY = "# Library\n\nThe current time is 2024-05-15 15:00:00 EST.\n\nA member may have 7 loans.\n"
_MEMBERS, _BOOKS = 6, 8


def write_domain(clone: Path) -> list[dict[str, Any]]:
    """Write a clone with a domain of our own, and return its 48 tasks as rows of the data set."""
    members = {f"M{n}": {"name": f"Reader {n}"} for n in range(1, _MEMBERS + 1)}
    books = {f"B{n}": {"title": f"Volume {n}"} for n in range(1, _BOOKS + 1)}
    rows = [_row(member, book, asks=n % 2 == 0) for member in members for n, book in enumerate(books)]
    for path, text in {
        f"tau2/domains/{_NAME}/data_model.py": _DATA_MODEL,
        f"tau2/domains/{_NAME}/tools.py": _TOOLS,
        f"data/tau2/domains/{_NAME}/db.json": json.dumps({"members": members, "books": books}),
        f"data/tau2/domains/{_NAME}/policy.md": _POLICY,
        "LICENSE": "Written for the rehearsal.\n",
    }.items():
        (clone / path).parent.mkdir(parents=True, exist_ok=True)
        (clone / path).write_text(text, encoding="utf-8")
    return rows


def _row(member: str, book: str, asks: bool) -> dict[str, Any]:
    """A task in the columns of the data set: a loan, or a question that the rehearsal's policy answers by chance."""
    lend = {"member_id": member, "book_id": book}
    calls = [] if asks else [("get_member", {**lend, "book_id": None}), ("lend_book", lend)]
    number = member[1:] + book[1:]
    instructions = {
        "task_instructions": "Be brief.",
        "reason_for_call": f"You want to {'know how many loans one may have beside' if asks else 'borrow'} {book}.",
        "known_info": f"You are member {member}.",
        "unknown_info": None,
        "domain": _NAME,
    }
    criteria = {
        "actions": [
            {"action_id": f"{number}_{place}", "name": name, "arguments": arguments}
            for place, (name, arguments) in enumerate(calls)
        ],
        "communicate_info": ["7"] if asks else [],
        "nl_assertions": None,
    }
    return {
        "id": number,
        "description": {"purpose": "", "relevant_policies": None, "notes": None},
        "user_scenario": {"persona": None, "instructions": instructions},
        "initial_state": None,
        "evaluation_criteria": criteria,
    }
