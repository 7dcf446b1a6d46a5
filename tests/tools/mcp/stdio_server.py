"""An MCP server on standard input and output, by hand: it starts in no time, and does what no good server does.

It speaks the handshake of 2025-06-18. Its first argument is its version; its others name what is wrong with it.
"""

import base64
import json
import os
import sys
import time

VERSION, FAULTS = (sys.argv[1:2] or ["1.0"])[0], sys.argv[2:]
POINT = {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}, "required": ["x", "y"]}
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NONE = {"type": "object", "properties": {}}
TOOLS = {
    "echo": ("Says a text again.", TEXT),
    "geo.distance": (
        "Measures how far\n  two points are apart.",
        {"type": "object", "$defs": {"Point": POINT}, "required": ["points"], "properties": {
            "points": {"type": "array", "items": {"$ref": "#/$defs/Point"}, "minItems": 2, "maxItems": 2}}},
    ),
    "fail": ("", NONE),
    "picture": ("Draws.", NONE),
    "refuse": ("Answers with an error of the protocol.", NONE),
    "hang": ("Never answers.", NONE),
    "die": ("Ends the server.", NONE),
    "pid": ("Says which process it is.", NONE),
    "variables": ("Says what it was given.", NONE),
    "half": ("Answers with half of an emoji.", NONE),
}  # fmt: skip
if "bad schema" in FAULTS:
    TOOLS["bad"] = ("Has a schema that leads outside.", {"type": "object", "properties": {"a": {"$ref": "http://x/y"}}})
if "half schema" in FAULTS:
    TOOLS["bad"] = ("Half an emoji: \ud83d", {"type": "object", "properties": {"a": {"enum": ["\ud83d"]}}})
if "raw" in FAULTS:
    TOOLS["raw"] = ("Answers with these very bytes.", {"type": "object", "properties": {"line": {"type": "string"}}})
if "mute" in FAULTS:
    time.sleep(60)
if "silly" in FAULTS:
    sys.exit("I will not start")


def called(name: str, arguments: dict) -> dict:
    if name == "die":
        os._exit(1)
    if name == "hang":
        time.sleep(60)
    if name == "half":
        return {"content": [{"type": "text", "text": "a\ud83d"}], "structuredContent": {"\ude00": ["\ud83d"]}}
    if name == "fail":
        return {"content": [{"type": "text", "text": "It did not work."}], "isError": True}
    if name == "picture":
        return {"content": [{"type": "image", "data": "aGk=", "mimeType": "image/png"}]}
    if name == "geo.distance":
        (a, b) = arguments["points"]
        apart = ((a["x"] - b["x"]) ** 2 + (a["y"] - b["y"]) ** 2) ** 0.5
        return {"content": [], "structuredContent": {"apart": apart}}
    texts = {
        "bad": "",
        "echo": arguments.get("text"),
        "pid": str(os.getpid()),
        "variables": str(os.environ.get("MCP_TEST_KEY")),
    }
    return {"content": [{"type": "text", "text": texts[name]}]}


def answer(request: dict) -> dict:
    match request["method"]:
        case "initialize":
            about = {"name": "by-hand", "version": VERSION}
            return {"result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}}
        case "tools/list":
            tools = [{"name": n, "description": about, "inputSchema": s} for n, (about, s) in TOOLS.items()]
            half = len(tools) // 2
            if (request.get("params") or {}).get("cursor"):
                return {"result": {"tools": tools[half:], "nextCursor": ""}}  # as some servers end a list
            return {"result": {"tools": tools[:half], "nextCursor": "rest"}}
        case "tools/call":
            name = request["params"]["name"]
            if name == "refuse":
                return {"error": {"code": -32602, "message": "These arguments are refused."}}
            return {"result": called(name, request["params"].get("arguments") or {})}
        case method:
            return {"error": {"code": -32601, "message": f"no {method}"}}


for line in sys.stdin:
    request = json.loads(line)
    if request.get("params", {}).get("name") == "raw":
        said = base64.b64decode(request["params"]["arguments"]["line"])
        sys.stdout.buffer.write(said.replace(b'"ID"', json.dumps(request["id"]).encode()) + b"\n")
        sys.stdout.buffer.flush()
    elif "id" in request:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer(request)}), flush=True)
