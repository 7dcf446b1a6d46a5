"""The process of one snippet: compiles it, runs it, and shows the last value or the exception.

Imported by the worker before it forks; needs only the stdlib and `common`.
"""

import ast
import builtins
import contextlib
import os
import sys
import types

from orchestra_jax.tools.python.common import EXCEPTION_EXIT

_EXCEPTION_LINE_MAX = 2000


def _show_exception(error: BaseException) -> None:
    # traceback.format_exception_only would import and format more than the one line that is wanted.
    line = type(error).__name__
    with contextlib.suppress(BaseException):  # its text is the snippet's own code, and may raise too
        if isinstance(error, SyntaxError):
            line = f"{line}: {error.msg} (line {error.lineno})"
        elif text := str(error):
            line = f"{line}: {text}"
    with contextlib.suppress(OSError):  # its standard output is closed or full
        os.write(1, line[:_EXCEPTION_LINE_MAX].encode("utf-8", "backslashreplace") + b"\n")


def _flush(*streams: object) -> None:
    for stream in streams:
        with contextlib.suppress(BaseException):  # closed, or whatever the snippet put there
            stream.flush()  # type: ignore[attr-defined]


def compile_parts(code: str) -> list[types.CodeType]:
    """Return code objects to run in order; the value of the last one is shown if it is not None.

    The Python AST costs a fork 0.2 ms in copied pages, so first the last statement is guessed from the text. The guess
    holds when both parts compile: then no statement spans the cut, and a tail that is no expression has no value.
    """
    lines = code.rstrip().split("\n")
    cut = len(lines) - 1
    while cut and lines[cut][:1] in " \t\r)]}#":  # a line without text too
        cut -= 1
    head, tail = "\n".join(lines[:cut]), "\n".join(lines[cut:])
    if "__future__" not in code:
        try:
            parts = [compile(head, "<code>", "exec")] if head else []
            try:
                return [*parts, compile(tail, "<code>", "eval")]
            except SyntaxError:
                if ";" not in tail:
                    return [*parts, compile(tail, "<code>", "exec")]
        except SyntaxError:
            pass  # a wrong guess, or wrong code: the whole text tells
    tree = ast.parse(code, "<code>")
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        return [compile(tree, "<code>", "exec")]
    del tree.body[-1]
    return [compile(tree, "<code>", "exec"), compile(ast.Expression(last.value), "<code>", "eval")]


def execute(source: bytes) -> int:
    """Run the snippet in this process, show the value of its last line or its exception; return the exit code."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    scope = module.__dict__
    scope["__builtins__"] = builtins
    out = sys.stdout  # the snippet may put another in its place, or close it
    try:
        value = None
        for part in compile_parts(source.decode("utf-8", "surrogatepass")):
            value = eval(part, scope)
        if value is not None:
            print(repr(value))
        if (threading := sys.modules.get("threading")) is not None:  # not preloaded: 0.3 ms for every fork
            for thread in threading.enumerate():
                if thread is not threading.main_thread() and not thread.daemon:
                    thread.join()
    except BaseException as error:
        _flush(sys.stdout, out)
        if isinstance(error, SystemExit) and error.code in (None, 0):
            return 0
        _show_exception(error)
        return EXCEPTION_EXIT
    _flush(sys.stdout, out)
    return 0
