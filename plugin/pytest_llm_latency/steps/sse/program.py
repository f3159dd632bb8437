"""Whether sse.py defines the contract's `stream`. It is read, never executed."""

from __future__ import annotations

import ast

from ...verdicts.verdict import Verdict, graded


def sse_program(program: bytes) -> Verdict:
    """sse.py defines `stream` with the contract's parameters. It is read, never executed."""
    relation = "sse.py defines stream(messages, max_tokens=64, cache_prompt=True, raw_out=None)"
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return graded("sse", relation, f"sse.py does not parse: {type(error).__name__}: {error}")
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "stream"]
    if not found:
        return graded("sse", relation, "sse.py defines no function stream (with def)")
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    arguments = found[-1].args
    names = [argument.arg for argument in arguments.posonlyargs + arguments.args]
    defaults = dict(zip(reversed(names), reversed(arguments.defaults)))
    wanted = {"max_tokens": 64, "cache_prompt": True, "raw_out": None}
    if names[:4] != ["messages", *wanted]:
        return graded("sse", relation, f"stream takes ({', '.join(names)})")
    missing = object()

    def value(node: ast.expr | None) -> object:
        if isinstance(node, ast.Constant):
            return node.value
        return constants.get(node.id, missing) if isinstance(node, ast.Name) else missing

    differing = [name for name, default in wanted.items() if value(defaults.get(name)) != default]
    problem = f"stream has another default for {', '.join(differing)}" if differing else None
    return graded("sse", relation, problem)
