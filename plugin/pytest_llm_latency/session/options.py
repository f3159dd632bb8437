"""Every option once: its name, environment variable, ini, default, check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..language import CATALOGUES
from ..sse import BYTES_AT_MOST
from ..steps.sentence.sentences import RULES
from ..steps.sentence.speech import WORDS_PER_MINUTE
from .option_values import (
    to_arguments,
    to_body,
    to_deadlines,
    to_headers,
    to_lang,
    to_one_of,
    to_page,
    to_path,
    to_positive,
    to_share,
    to_text,
    to_url,
    to_urls,
    to_whole,
)

INCONCLUSIVE = ("fail", "skip")
SERVER_KINDS = ("auto", "url", "voice-llm", "llama-server", "local")


@dataclass(frozen=True)
class Option:
    """One option. `parse` takes the text and raises ValueError with what would be right; one
    that may be given `often` gets a line each; the text of a `secret` one may hold a key, and is
    not shown; one that may be given `bare`, without a value, then has the text ""."""

    name: str
    parse: Callable[[str], Any]
    help: str
    default: Any = None
    metavar: str = "TEXT"
    often: bool = False
    secret: bool = False
    bare: bool = False

    @property
    def flag(self) -> str:
        return "--llm-" + self.name.replace("_", "-")

    @property
    def dest(self) -> str:
        """Nobody else's: two options of one `dest` would share their value in silence."""
        return f"pytest_llm_latency_{self.name}"

    @property
    def ini(self) -> str:
        return "llm_" + self.name

    @property
    def is_path(self) -> bool:
        return self.parse in (to_path, to_page)

    @property
    def variable(self) -> str:
        return "LLM_" + self.name.upper()


OPTIONS = (
    Option(
        "url",
        to_urls,
        "measure the server at URL; it is never stopped. Given more than once: one after another",
        default=(),
        metavar="URL",
        often=True,
    ),
    Option(
        "upstream_url",
        to_url,
        "the server behind the one at --llm-url: what is broken is measured there, too",
        metavar="URL",
    ),
    Option("upstream_model", to_text, "model name to send to the server behind", metavar="NAME"),
    Option("api_key_file", to_path, "file that holds the API key (or LLM_API_KEY)", metavar="FILE"),
    Option("model", to_text, "model name to send with every request", metavar="NAME"),
    Option("gguf", to_path, "model file for a server of our own", metavar="FILE"),
    Option(
        "server",
        to_one_of(SERVER_KINDS),
        "the way of having a server: " + ", ".join(SERVER_KINDS),
        default="auto",
        metavar="KIND",
    ),
    Option(
        "server_args",
        to_arguments,
        "more options for a server of our own, as llama-server spells them",
        default=(),
        metavar="ARGS",
        secret=True,
    ),
    Option(
        "artifacts",
        to_path,
        "directory of the run's files (default: voice/llm)",
        metavar="DIR",
    ),
    Option(
        "grade",
        to_path,
        "grade DIR (default: voice/llm) from its files alone, without a server",
        metavar="DIR",
        bare=True,
    ),
    Option(
        "page",
        to_page,
        "write the page there (default: report.html in the run's directory; a grading writes none)",
        metavar="FILE",
    ),
    Option(
        "baseline",
        to_path,
        "put this run's ratios beside those of the run in DIR; worse ones fail",
        metavar="DIR",
    ),
    Option(
        "tolerance",
        to_share,
        "how much worse than in the baseline a ratio may be (default: 0.25)",
        default=0.25,
        metavar="SHARE",
    ),
    Option(
        "rounds",
        to_whole("rounds"),
        "measure prefill, cache and sentence at least N times (default: 1; 5 with --llm-baseline)",
        metavar="N",
    ),
    Option("kb", to_path, "directory of at least 12 Markdown documents", metavar="DIR"),
    Option("log", to_path, "the server's log file", metavar="FILE"),
    Option("log_command", to_text, "command that prints the server's log", metavar="CMD"),
    Option(
        "start_timeout",
        to_positive,
        "seconds that a server may take to load its model (default: 120)",
        default=120.0,
        metavar="S",
    ),
    Option(
        "max_bytes",
        to_whole("bytes"),
        "end an answer that is longer (default: 16777216)",
        default=BYTES_AT_MOST,
        metavar="N",
    ),
    Option(
        "inconclusive",
        to_one_of(INCONCLUSIVE),
        "what a verdict that noise hides does to its test: fail (default) or skip",
        default="fail",
        metavar="WHAT",
    ),
    Option(
        "sentence",
        to_one_of(RULES),
        "how the first sentence is found: plain (default, the lab's) or careful",
        default="plain",
        metavar="RULE",
    ),
    Option(
        "speech_wpm",
        to_positive,
        "words a minute of the voice that speaks the answer (default: 150)",
        default=WORDS_PER_MINUTE,
        metavar="N",
    ),
    Option(
        "header",
        to_headers,
        "'NAME: VALUE' to send with every request; may be given more than once",
        default={},
        metavar="LINE",
        often=True,
        secret=True,
    ),
    Option(
        "body",
        to_body,
        "JSON object to add to every chat request: temperature, chat_template_kwargs",
        default={},
        metavar="JSON",
        secret=True,
    ),
    Option(
        "deadlines",
        to_deadlines,
        "seconds by name: connect=10,first_byte=300,gap=300,total=600 (the defaults)",
        default={},
        metavar="NAME=S",
    ),
    Option("budget", to_whole("tokens"), "ask for no more tokens than N in a run", metavar="N"),
    Option("ca", to_path, "certificates (PEM) to trust instead of the system's", metavar="FILE"),
    Option(
        "lang",
        to_lang,
        f"language of what is shown: {', '.join(CATALOGUES)} (default: the locale's, or en)",
        metavar="LANG",
    ),
)
