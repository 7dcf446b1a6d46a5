"""A clinic's tools: patients, doctors, free slots and appointments. The rules are in policy.md."""

from datetime import datetime
from typing import Any

from orchestra_jax.envs.database.session import Desk, Kind, database_tool


def _when(iso: str) -> str:
    found = datetime.fromisoformat(iso)
    return f"{found.day} {found:%B} at {found.hour}"


def _free(desk: Desk, slot: str) -> Any:
    entry = desk.edit("slots", slot)
    if entry["taken"]:
        raise ValueError(f"{slot} is taken.")
    return entry


@database_tool(Kind.READ)
def find_doctor(desk: Desk, field: str) -> str:
    """Finds the doctor of a field, and the first slot that is free.

    Args:
        field: what the doctor treats, such as skin.
    """
    for name, entry in desk.rows("doctors"):
        if entry["field"] == field:
            desk.get("doctors", name)
            free = [slot for slot, each in desk.rows("slots") if each["doctor"] == name and not each["taken"]]
            first = f"{free[0]} is free on {_when(desk.get('slots', free[0])['time'])}" if free else "no slot is free"
            return f"{entry['name']}: {first}."
    raise ValueError(f"There is no doctor for {field}.")


@database_tool(Kind.READ)
def get_appointment(desk: Desk, appointment: str) -> str:
    """Shows when an appointment is, and with whom.

    Args:
        appointment: id, such as A12.
    """
    slot = desk.get("slots", desk.get("appointments", appointment)["slot"])
    return f"{_when(slot['time'])} with {desk.get('doctors', slot['doctor'])['name']}"


@database_tool(Kind.READ)
def get_bill(desk: Desk, patient: str) -> str:
    """Shows what a patient has to pay.

    Args:
        patient: id, such as P12.
    """
    return f"{patient} owes {desk.get('patients', patient)['owes']} dollars."


@database_tool(Kind.WRITE)
def book_slot(desk: Desk, patient: str, slot: str) -> str:
    """Makes an appointment of a free slot.

    Args:
        patient: id, such as P12.
        slot: id, such as S12.
    """
    desk.get("patients", patient)
    entry = _free(desk, slot)
    entry["taken"] = True
    desk.insert("appointments", desk.new_id("A", patient, slot), {"patient": patient, "slot": slot})
    return f"booked for {_when(entry['time'])}"


@database_tool(Kind.WRITE)
def move_appointment(desk: Desk, appointment: str, slot: str) -> str:
    """Moves an appointment to a free slot; its old slot is free again.

    Args:
        appointment: id, such as A12.
        slot: id, such as S12.
    """
    entry, new = desk.edit("appointments", appointment), _free(desk, slot)
    desk.edit("slots", entry["slot"])["taken"] = False
    entry["slot"], new["taken"] = slot, True
    return f"moved to {_when(new['time'])}"


@database_tool(Kind.WRITE)
def cancel_appointment(desk: Desk, appointment: str) -> str:
    """Cancels an appointment; its slot is free again.

    Args:
        appointment: id, such as A12.
    """
    time = desk.edit("slots", desk.get("appointments", appointment)["slot"])
    time["taken"] = False
    desk.delete("appointments", appointment)
    return f"cancelled for {_when(time['time'])}"


@database_tool(Kind.WRITE)
def pay_bill(desk: Desk, patient: str) -> str:
    """Takes the payment of all that a patient owes.

    Args:
        patient: id, such as P12.
    """
    entry = desk.edit("patients", patient)
    if not entry["owes"]:
        raise ValueError(f"{patient} owes 0 dollars.")
    paid, entry["owes"] = entry["owes"], 0
    return f"paid {paid} dollars"


@database_tool(Kind.GENERIC)
def hand_over(desk: Desk) -> str:
    """Hands the conversation over to a nurse, who is asked nothing else here."""
    return "handed over"
