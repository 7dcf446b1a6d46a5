"""A package in the form of bfcl-eval: one API that counts, and two scenarios in each of the four sets."""

import json
from pathlib import Path

API = """
class TicketAPI:
    def _load_scenario(self, scenario, long_context=False):
        self.count = scenario["count"] + 100 * long_context
        self.log = scenario.get("log", [])
        self._hidden = object()

    def add(self, number, twice=False):
        self.count += number * (2 if twice else 1)
        self.log.append(number)
        return {"count": self.count}

    def read(self):
        return {"count": self.count} if self.count < 1000 else {"error": "too many"}

    def fails(self):
        raise KeyError("a bug of its own")
"""
INTEGER = {"type": "integer", "description": "How much."}
FUNCTIONS = [
    {"name": "add", "description": "Adds.", "parameters": {
        "type": "dict", "properties": {"number": INTEGER, "twice": {"type": "boolean"}}, "required": ["number"]}},
    {"name": "read", "description": "Reads.", "parameters": {"type": "dict", "properties": {}, "required": []}},
    {"name": "fails", "description": "Fails.", "parameters": {"type": "dict", "properties": {}, "required": []}},
    {"name": "unwanted", "description": "Left out.", "parameters": {"type": "dict", "properties": {}, "required": []}},
]  # fmt: skip


def said(*words):
    return [[{"role": "user", "content": text}] if text else [] for text in words]


def write(root: Path, golden=("add(3)", "read()")) -> Path:
    """Write the package below `root`; `golden` are the calls that answer the first turn and the last."""
    data, code = (
        root / "bfcl_eval" / "data",
        root / "bfcl_eval" / "eval_checker" / "multi_turn_eval" / "func_source_code",
    )
    for folder in (data / "possible_answer", data / "multi_turn_func_doc", code):
        folder.mkdir(parents=True)
    for folder in (code, *code.parents[:3]):
        (folder / "__init__.py").touch()
    (code / "ticket_api.py").write_text(API)
    (data / "multi_turn_func_doc" / "ticket_api.json").write_text("\n".join(map(json.dumps, FUNCTIONS)))
    first, last = golden
    for kind in ("base", "miss_func", "miss_param", "long_context"):
        words, calls, more = ["Add 3.", "Read it."], [[first], [last]], {}
        if kind == "miss_func":
            words, calls, more = ["Add 3.", "Read it.", ""], [[first], [], [last]], {"missed_function": {"2": ["read"]}}
        if kind == "miss_param":
            words, calls = ["Add something.", "3.", "Read it."], [[], [first], [last]]
        rows, answers = [], []
        for number in range(8):
            name = f"multi_turn_{kind}_{number}"
            rows.append({
                "id": name, "question": said(*words), "initial_config": {"TicketAPI": {"count": number}},
                "involved_classes": ["TicketAPI"], "excluded_function": ["unwanted"], **more,
            })  # fmt: skip
            answers.append({"id": name, "ground_truth": calls})
        file = f"BFCL_v4_multi_turn_{kind}.json"
        (data / file).write_text("\n".join(map(json.dumps, rows)))
        (data / "possible_answer" / file).write_text("\n".join(map(json.dumps, answers)))
    return root
