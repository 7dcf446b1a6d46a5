"""A library's tools: members, books and loans. The rules are in policy.md."""

from datetime import date, timedelta

from orchestra_jax.envs.database.session import Desk, Kind, database_tool

LOAN_DAYS, MOST_RENEWALS = 21, 2


def _day(iso: str) -> str:
    found = date.fromisoformat(iso)
    return f"{found.day} {found:%B}"


def _after(iso: str, days: int) -> str:
    return (date.fromisoformat(iso[:10]) + timedelta(days)).isoformat()


@database_tool(Kind.READ)
def get_member(desk: Desk, member: str) -> str:
    """Shows a member: the name, and the fines that are due.

    Args:
        member: id, such as M12.
    """
    entry = desk.get("members", member)
    return f"{member} {entry['name']} owes {entry['fines']} dollars."


@database_tool(Kind.READ)
def get_loan(desk: Desk, loan: str) -> str:
    """Shows a loan: the book, when it is due, and how often it was renewed.

    Args:
        loan: id, such as L12.
    """
    entry = desk.get("loans", loan)
    return f"{desk.get('books', entry['book'])['title']} is due {_day(entry['due'])}, renewed {entry['renewals']}."


@database_tool(Kind.READ)
def find_book(desk: Desk, title: str) -> str:
    """Finds a book by its title: its id, and how many copies can be lent.

    Args:
        title: of the book.
    """
    for name, entry in desk.rows("books"):
        if entry["title"].casefold() == title.casefold():
            desk.get("books", name)
            return f"{name} has {entry['copies']} copies."
    raise ValueError(f"There is no book {title}.")


@database_tool(Kind.WRITE)
def renew_loan(desk: Desk, loan: str) -> str:
    """Renews a loan by three weeks, twice at most.

    Args:
        loan: id, such as L12.
    """
    entry = desk.edit("loans", loan)
    if entry["renewals"] >= MOST_RENEWALS:
        raise ValueError(f"{loan} was renewed {entry['renewals']} times.")
    entry["renewals"] += 1
    entry["due"] = _after(entry["due"], LOAN_DAYS)
    return f"due {_day(entry['due'])}"


@database_tool(Kind.WRITE)
def lend_book(desk: Desk, member: str, book: str) -> str:
    """Lends a copy of a book to a member for three weeks.

    Args:
        member: id, such as M12.
        book: id, such as B12.
    """
    desk.get("members", member)
    entry = desk.edit("books", book)
    if not entry["copies"]:
        raise ValueError(f"{book} has no copies.")
    entry["copies"] -= 1
    due = _after(desk.now, LOAN_DAYS)
    desk.insert("loans", desk.new_id("L", member, book), {"member": member, "book": book, "due": due, "renewals": 0})
    return f"due {_day(due)}"


@database_tool(Kind.WRITE)
def reserve_book(desk: Desk, member: str, book: str) -> str:
    """Reserves a book that is out for a member; a book with copies can be lent instead.

    Args:
        member: id, such as M12.
        book: id, such as B12.
    """
    desk.get("members", member)
    entry = desk.edit("books", book)
    if entry["copies"]:
        raise ValueError(f"{book} has copies.")
    if member in entry["reserved"]:
        raise ValueError(f"{book} is reserved for {member}.")
    entry["reserved"].append(member)
    return f"reserved, place {len(entry['reserved'])}"


@database_tool(Kind.WRITE)
def pay_fines(desk: Desk, member: str) -> str:
    """Takes the payment of all fines of a member.

    Args:
        member: id, such as M12.
    """
    entry = desk.edit("members", member)
    if not entry["fines"]:
        raise ValueError(f"{member} owes 0 dollars.")
    paid, entry["fines"] = entry["fines"], 0
    return f"paid {paid} dollars"


@database_tool(Kind.GENERIC)
def hand_over(desk: Desk) -> str:
    """Hands the conversation over to a librarian, who is asked nothing else here."""
    return "handed over"
