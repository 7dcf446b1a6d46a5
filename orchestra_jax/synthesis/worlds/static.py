"""The check of generated tool functions: their syntax tree against a short list, before anything runs.

This is the first of two walls. What passes runs in the sandbox all the same, with limits on CPU time and memory.
"""

import ast

MOST_CHARS = 6000
HEAD = (
    "import math\n"
    "from datetime import date, datetime, timedelta\n"
    "from typing import Any, Literal\n\n"
    "from orchestra_jax.envs.database.session import Desk, Kind, database_tool\n"
)
# Names that need no definition, beside the function's own.
_KNOWN = frozenset(
    "abs all any bool dict divmod enumerate float frozenset int isinstance len list max min range reversed round set "
    "sorted str sum tuple zip ValueError date datetime timedelta math".split()
)
_TYPES = frozenset(("str", "int", "float", "bool", "list", "dict", "Literal", "Any"))
_DESK = frozenset(("get", "exists", "rows", "edit", "insert", "delete", "new_id", "now"))
# Attributes of any object that lead round the desk, to a frame, to a text that is a program, or to the true clock.
_ATTRIBUTES = frozenset(
    "read changes ids format format_map mro today utcnow now fromtimestamp timestamp astimezone "
    "gi_frame gi_code gi_yieldfrom cr_frame "
    "ag_frame f_back f_globals f_locals f_builtins f_code tb_frame tb_next".split()
)
_NODES = tuple(
    getattr(ast, name)
    for name in (
        "Expr Assign AugAssign AnnAssign Return If For Raise Pass Break Continue Try ExceptHandler Delete "
        "BoolOp BinOp UnaryOp IfExp Dict Set ListComp SetComp DictComp GeneratorExp comprehension Compare "
        "Call keyword FormattedValue JoinedStr Constant Attribute Subscript Starred Name List Tuple Slice "
        "Lambda arguments arg expr_context boolop operator unaryop cmpop"
    ).split()
)


def fault(code: str, name: str, kind: str) -> str | None:
    """Return a clause why generated code is not one tool function that may be tried, or None if it is.

    Args:
        kind: the `session.Kind` that its decorator must name.
    """
    if len(code) > MOST_CHARS:
        return f"it has more than {MOST_CHARS} characters"
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"it is no Python: {error}"
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef):
        return "it must be one function with its decorator, without imports or anything else beside it"
    function = tree.body[0]
    return _head(function, name, kind) or _body(function)


def _head(function: ast.FunctionDef, name: str, kind: str) -> str | None:
    """Return a fault of decorator, name, arguments or docstring: of all that runs when the file is read."""
    wanted = f"database_tool(Kind.{kind.upper()})"
    if [ast.unparse(each) for each in function.decorator_list] != [wanted]:
        return f"its one decorator must be @{wanted}"
    if function.name != name:
        return f"it must be called {name}"
    arguments = function.args
    if (
        arguments.vararg
        or arguments.kwarg
        or arguments.posonlyargs
        or arguments.kwonlyargs
        or getattr(function, "type_params", None)
    ):
        return "its arguments must be plain ones with names"
    if not arguments.args or arguments.args[0].arg != "desk" or _text(arguments.args[0].annotation) != "Desk":
        return "its first argument must be desk: Desk"
    for each in arguments.args[1:]:
        if each.annotation is None or not _is_type(each.annotation):
            return f"its argument {each.arg} needs a type of str, int, float, bool, Literal, list, dict, or with | None"
    if not all(isinstance(default, ast.Constant) for default in arguments.defaults):
        return "its defaults must be constants"
    if function.returns is not None and not (_is_type(function.returns) or _text(function.returns) == "None"):
        return "its result must have a plain type"
    if not (ast.get_docstring(function) or "").strip():
        return "it needs a docstring"
    return None


def _body(function: ast.FunctionDef) -> str | None:
    inner = [node for statement in function.body for node in ast.walk(statement)]
    own = {each.arg for each in function.args.args}
    own |= {node.id for node in inner if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    own |= {node.arg for node in inner if isinstance(node, ast.arg)}
    own |= {node.name for node in inner if isinstance(node, ast.ExceptHandler) and node.name}
    if bad := next((each for each in sorted(own) if each.startswith("_")), None):
        return f"line of {bad}: names may not begin with an underscore"
    if shadowed := sorted(own & (_KNOWN | {"Desk", "Kind", "database_tool"})):
        return f"{shadowed[0]} may not be given another meaning"
    # A type by itself would give the methods that a shared entry refuses.
    called = {id(node.func) for node in inner if isinstance(node, ast.Call)}
    tested = {
        id(each)
        for node in inner
        if isinstance(node, ast.Call) and _text(node.func) == "isinstance"
        for argument in node.args[1:]
        for each in ast.walk(argument)
    }
    noted = {id(each) for node in inner if isinstance(node, ast.AnnAssign) for each in ast.walk(node.annotation)}
    for node in inner:
        where = f"line {getattr(node, 'lineno', function.lineno)}"
        if not isinstance(node, _NODES):
            return f"{where}: {type(node).__name__} is not allowed"
        if isinstance(node, ast.Name) and node.id not in own | _KNOWN | _TYPES:
            return f"{where}: the name {node.id} is not allowed"
        if isinstance(node, ast.Name) and node.id in ("dict", "list") and id(node) not in called | tested | noted:
            return f"{where}: {node.id} may only be called"
        if isinstance(node, ast.Attribute):
            on_desk = isinstance(node.value, ast.Name) and node.value.id == "desk"
            if node.attr.startswith("_") or (node.attr not in _DESK if on_desk else node.attr in _ATTRIBUTES):
                return f"{where}: the attribute {node.attr} is not allowed"
        if isinstance(node, ast.ExceptHandler) and _text(node.type) != "ValueError":
            return f"{where}: only ValueError may be caught"
    return None


def _is_type(node: ast.expr) -> bool:
    """Return whether an annotation is made of plain types alone."""
    match node:
        case ast.Name(id=name):
            return name in _TYPES
        case ast.Constant(value=None):
            return True
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            return _is_type(left) and _is_type(right)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=choices):
            each = choices.elts if isinstance(choices, ast.Tuple) else [choices]
            return all(isinstance(one, ast.Constant) for one in each)
        case ast.Subscript(value=ast.Name(id="list" | "dict"), slice=inner):
            return all(map(_is_type, inner.elts if isinstance(inner, ast.Tuple) else [inner]))
    return False


def _text(node: ast.expr | None) -> str:
    return "" if node is None else ast.unparse(node)
