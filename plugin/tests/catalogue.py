"""Finds what the package says to people, and keeps the catalogues: `python plugin/tests/catalogue.py`.

By syntax tree: every text of more than one word in the modules that speak is a sentence, or the
template of one; what is none is named below. Fixed phrases are marked by `_("...")`, in modules and
in the report's own templates.
"""

from __future__ import annotations

import ast
import fnmatch
import io
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

import pytest_llm_latency
from pytest_llm_latency.language import CATALOGUES, DOMAIN, LOCALES, language

PACKAGE = Path(pytest_llm_latency.__file__).parent
# Modules whose texts nobody reads as sentences, or only in English: options and their errors,
# voice-llm's own terminal, and programs of their own. Page and CI summary mark theirs by `_`.
SILENT = (
    *("__init__.py", "*/__init__.py", "relations.py", "language.py", "plan.py", "write_schemas.py"),
    *(
        "report/page.py",
        "report/story.py",
        "report/charts.py",
        "report/ci.py",
        "compare/numbers.py",
    ),
    *("session/options.py", "session/option_values.py", "session/resolve.py"),
    "session/settings.py",
    *("session/registration.py", "steps/sentence/sentences.py"),
    # what is wrong with a directory made by hand is said in English
    *("steps/by_hand.py", "steps/checks.py", "steps/*/by_hand.py"),
    # and so is what a run's files disprove
    *("proof/closes.py", "proof/evidence.py", "proof/legs.py", "proof/recordings.py"),
    *("proof/prompts.py", "proof/requests.py", "proof/runs.py"),
    *("servers/embedded_main.py", "servers/guard.py", "servers/launcher.py"),
)
PAGES = ("*.html", "*.jinja", "*.j2", "*.md")
UNSAID_ERRORS = {"UsageError", "ValueError", "AssertionError", "KeyError", "TypeError"}
UNSAID_CALLS = {"compile", "fullmatch", "search", "StashKey", "addinivalue_line", "add_argument"}
# Texts of more than one word that nobody is shown as a sentence, and parts of what TOGETHER has.
NO_SENTENCES = {
    *("Bearer {api_key}", "Bearer {key}", "gzip, deflate", "end of its log"),
    *('"one token"', "{value_number} ms", "LLM latency", "LLM latency, {target}", "model {name}"),
    *("llm-latency: {name}:", "{numbers} in {phase}", "page {page}"),
    "{prompt_number} tokens processed, ",
    " ({tokens_after_close_number} more tokens)",
    # what models write
    *("Here's my thought process:", "Here's my response:"),
    *("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    # sse.py's own terminal, and what it asks
    *("What should a new patient bring?", "sse.py: {url_word}: {error}"),
    "You are a clinic phone assistant. Answer in one short sentence.",
    "first text after {t_number} ms, ",
    "{pieces_number} pieces, {first}total {total_number} ms, timings: {timings}",
}
# What stands behind a sentence, after a full stop.
AFTERWARDS = (
    "Measured directly at the server behind, it can be used: what stands between is to blame",
    "Measured directly at the server behind, it holds ({numbers}): what stands between is to blame",
    "Measured directly at the server behind, it is broken, too ({numbers}): what stands between "
    "is not to blame",
    "At the server behind it could not be told",
    "The server behind could not be measured: {error}",
    "The server behind, asked directly, fails, too: {error}",
)
# Single words, and what is put together of parts that a syntax tree does not show side by side.
TOGETHER = (
    # the page's: phases, steps, legs, what became of a close
    *("connect", "prefill", "reasoning", "rest", "generation", "ended", "stopped", "ran on"),
    *("unknown", "until the close", "until the slot is idle", "Server", "The stream", "Prefill"),
    *("Time to first token", "KV cache", "First sentence", "Cancel", "Report", "cold"),
    *("the same again", "a line changed at its end", "a line changed at its front", "failed"),
    *(
        "answers",
        "tokens",
        "characters",
        "holds",
        "broken",
        "BROKEN",
        "inconclusive",
        "INCONCLUSIVE",
        "cause",
    ),
    *("files", "page"),
    *("none", "1 read", "1 sentence", "{label_word}: {error}"),
    "{method_word} {url_word}: {error}",
    "{received_number} < {max_number} pieces, closed at {closed_at_time} in generation",
    "{received_number} < {max_number} pieces, closed at {closed_at_time} in prefill",
    "{prompt_number} tokens processed, {ttft_number}",
    "{how} ({tokens_after_close_number} more tokens)",
    *("cannot connect: {cause}", "the connection broke: {cause}"),
    "the server offers no /slots: HTTP {status_number}",
    "{missing}; it has no gauge of running requests in /metrics; {several}",
    "{url_word} ({kind_word}), model {model_name}, n_ctx {n_ctx_number}, slots {slots_number}, "
    "build {build_word}",
    *(f"{{sentence}}. {text}" for text in AFTERWARDS),
)
# How numbers are called that are written as they are, and what is never translated.
NUMBERS = re.compile(r".*(tokens|tokens_after_close|_n|_ctx|slots|status|total|rest|sentences)")
WORDS = {"base_url", "evidence", "file", "label", "leg", "run", "run_file", "upstream_url", "url"}
NAMES = {"directory", "filename", "path", "step", "strerror"}
# Functions that write a number or a time for people.
WRITERS = {"count": "number", "milliseconds": "time", "len": "number", "_number": "number"}
Parts = list[str | tuple[str, str]]  # a text, or a gap's (name, kind)


def messages() -> dict[str, list[str]]:
    """Every message, with the modules that it stands in."""
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts = set(_marked(tree))
        place = path.relative_to(PACKAGE).as_posix()
        if not any(fnmatch.fnmatch(place, pattern) for pattern in SILENT):
            texts |= set(_sentences(tree))
        for text in sorted(texts):
            found.setdefault(text, []).append(str(path.relative_to(PACKAGE)))
    for pattern in PAGES:
        for path in sorted(PACKAGE.rglob(pattern)):
            for text in phrases_of(path.read_text(encoding="utf-8")):
                found.setdefault(text, []).append(str(path.relative_to(PACKAGE)))
    for text in TOGETHER:
        found.setdefault(text, []).append("put together")
    return found


def phrases_of(page: str) -> list[str]:
    """The fixed phrases of a template: `_("...")`, `_('...')`."""
    calls = re.finditer(r"""\b_\(\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""", page)
    return [ast.literal_eval(call.group(1)) for call in calls]


def _marked(tree: ast.Module) -> Iterator[str]:
    """The texts of `_("...")` and `x._("...")`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and _name_of(node.func) == "_":
            text = node.args[0]
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield text.value


def _unsaid(tree: ast.Module) -> set[int]:
    """The ids of nodes whose texts are said to nobody: docstrings, annotations, patterns."""
    hidden: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            hidden.add(id(node.value))
        if isinstance(node, ast.Call) and _name_of(node.func) in UNSAID_ERRORS | UNSAID_CALLS:
            hidden |= {id(inner) for inner in ast.walk(node)}
        if isinstance(node, ast.Assert):
            hidden |= {id(inner) for inner in ast.walk(node)}
        if isinstance(node, (ast.arg, ast.AnnAssign)) and node.annotation is not None:
            hidden |= {id(inner) for inner in ast.walk(node.annotation)}
        if isinstance(node, ast.FunctionDef) and node.returns is not None:
            hidden |= {id(inner) for inner in ast.walk(node.returns)}
    return hidden


def _sentences(tree: ast.Module) -> Iterator[str]:
    """Sentences, and the templates of those that are filled in."""
    hidden = _unsaid(tree)
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        parts: list[Parts] = []
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            parts = [[(_name(node.target), ""), *more] for more in _parts(node.value)]
        elif _is_text(node):
            parts = _parts(node)
        else:
            continue
        # What it is made of is no sentence of its own.
        hidden |= {id(inner) for inner in ast.walk(node) if _within(inner, node)}
        for one in parts:
            message = _message(one)
            if _is_sentence(message) and message not in NO_SENTENCES:
                yield message


def _is_text(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _is_text(node.left) or _is_text(node.right)
    if _is_choice(node):
        return True
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _within(inner: ast.AST, outer: ast.AST) -> bool:
    """Whether it is a text of the outer text itself, not one that is filled in."""
    if isinstance(outer, ast.BinOp):
        sides = [outer.left, outer.right]
    elif isinstance(outer, ast.IfExp):
        sides = [outer.body, outer.orelse]
    elif isinstance(outer, ast.AugAssign):
        sides = [outer.value]
    elif isinstance(outer, ast.JoinedStr):
        sides = list(outer.values)
    elif isinstance(outer, ast.FormattedValue):
        sides = [outer.value] if _is_choice(outer.value) else []
        if outer.format_spec is not None and inner in ast.walk(outer.format_spec):
            return True
    else:
        return False
    return any(inner is side or _within(inner, side) for side in sides)


def _is_choice(node: ast.AST) -> bool:
    """Whether it is `one if … else other`, one of them a text."""
    return isinstance(node, ast.IfExp) and (_is_text(node.body) or _is_text(node.orelse))


def _parts(node: ast.AST) -> list[Parts]:
    """A text as what stands there and what is filled in; several where it has alternatives."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [[node.value]]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _joined([_parts(node.left), _parts(node.right)])
    if isinstance(node, ast.JoinedStr):
        return _joined([_parts(value) for value in node.values])
    if isinstance(node, ast.IfExp) and _is_choice(node):
        return [*_parts(node.body), *_parts(node.orelse)]
    if isinstance(node, ast.FormattedValue):
        if _is_choice(node.value) and node.conversion == -1:
            return _parts(node.value)
        spec = ast.unparse(node.format_spec) if node.format_spec is not None else ""
        return [[(_name(node.value), _kind(node.value, spec, node.conversion != -1))]]
    return [[(_name(node), _kind(node))]]


def _joined(alternatives: list[list[Parts]]) -> list[Parts]:
    return [list(itertools.chain(*chosen)) for chosen in itertools.product(*alternatives)]


def _name_of(function: ast.AST) -> str:
    return getattr(function, "attr", None) or getattr(function, "id", "")


def _name(node: ast.AST) -> str:
    """What a gap is called: after what fills it."""
    if isinstance(node, ast.Name):
        return node.id.strip("_").lower()
    if isinstance(node, ast.Attribute):
        return node.attr.strip("_").lower()
    if isinstance(node, ast.Call):
        if _name_of(node.func) == "join":
            return "list"
        return _name(node.args[0]) if node.args else _name(node.func)
    if isinstance(node, ast.Subscript):
        index = node.slice
        if isinstance(index, ast.Constant) and isinstance(index.value, str):
            return index.value
        return _name(node.value)
    if isinstance(node, ast.BinOp):
        return _name(node.left)
    if isinstance(node, ast.BoolOp):
        return _name(node.values[0])
    return "value"


def _kind(node: ast.AST, spec: str = "", quoted: bool = False) -> str:
    """What it is that is filled in: see `language.py`."""
    if quoted:
        return "quoted"
    if _name(node) in WORDS | NAMES:
        return "word" if _name(node) in WORDS else "name"
    if isinstance(node, ast.Call):
        writer = _name_of(node.func)
        if writer == "join" and isinstance(node.args[0], ast.Call):  # join(map(count, …))
            writer = _name_of(node.args[0].args[0])
        if writer in WRITERS:
            return WRITERS[writer]
    if re.search(r"[,fg%]", spec) or NUMBERS.fullmatch(_name(node)):
        return "number"
    return ""


def _message(parts: Parts) -> str:
    """The message of a catalogue: gaps by name, each name once, one gap where two touch."""
    text, taken, gap_before = "", set(), False
    for part in parts:
        if isinstance(part, str):
            text, gap_before = text + part, gap_before and not part
            continue
        if gap_before:
            continue
        name, kind = part
        if kind:
            name = re.sub(r"_(ms|s|n)$", "", name) + f"_{kind}"
        number = next(n for n in itertools.count(1) if (name, n) not in taken)
        taken.add((name, number))
        text += f"{{{name}{number if number > 1 else ''}}}"
        gap_before = True
    return text


def _is_sentence(message: str) -> bool:
    words = re.sub(r"\{[a-z0-9_]+\}", "\0", message)
    return bool(re.search(r"[A-Za-z]{2}", words)) and bool(
        re.search(r"[A-Za-z,;:)]\s+[A-Za-z(\0]|\0[^\0]*\s[A-Za-z]{2}", words)
    )


def catalogue(directory: str) -> Catalog:
    """The catalogue of a language as it is."""
    with po_path(directory).open("rb") as file:
        return read_po(file, locale=directory)


def po_path(directory: str) -> Path:
    """Where it stands."""
    return LOCALES / directory / "LC_MESSAGES" / f"{DOMAIN}.po"


def compiled(of: Catalog) -> bytes:
    """As gettext reads it."""
    out = io.BytesIO()
    write_mo(out, of)
    return out.getvalue()


def left_in_english(text: str) -> bool:
    """Whether a sentence of ours is still English in Chinese: three plain words in a row that no
    quotes hold, or two in a text that was not translated at all."""
    if "cancel task" in text:  # a line of a server's log
        return False
    shown = language("zh").say(text)
    bare = re.sub(r"'[^']*'|\([^)]*\)", "", shown)
    words = r"[A-Za-z]?[a-z]+(?:,? [a-z]{2,}){%d}"
    return bool(re.search(words % 2, bare)) or (shown == text and bool(re.search(words % 1, text)))


def main() -> None:
    """Bring every catalogue up to date: new messages without a translation, old ones dropped."""
    for directory in filter(None, CATALOGUES.values()):
        path = po_path(directory)
        old = catalogue(directory) if path.exists() else Catalog(locale=directory)
        new = Catalog(
            locale=directory,
            project="pytest-llm-latency",
            version=pytest_llm_latency.__version__,
            fuzzy=False,
            header_comment=f"# What pytest-llm-latency says to people, in {directory}.",
        )
        new.msgid_bugs_address = new.last_translator = new.language_team = ""
        for message, places in sorted(messages().items(), key=lambda one: (one[1], one[0])):
            known = old.get(message)
            translation = known.string if known is not None else ""
            new.add(message, translation, auto_comments=places)
        new.creation_date = new.revision_date = old.creation_date
        with path.open("wb") as file:
            write_po(file, new, width=0, sort_output=False, ignore_obsolete=True)
        path.with_suffix(".mo").write_bytes(compiled(new))
        missing = [message.id for message in new if message.id and not message.string]
        print(f"{path}: {len(new)} messages, {len(missing)} without a translation")


if __name__ == "__main__":
    main()
