"""Reasoning that a model writes into its text, and where the answer begins behind it. Pure.

Models mark it by tags; a server that knows them (llama.cpp's --reasoning-format, the
--reasoning-parser of vLLM and SGLang) sends it in a channel of its own. Knows texts alone.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# (what opens a thought, what closes it), by the chat templates and model cards of: DeepSeek R1,
# Qwen 3 and many others; Claude-like prompts; EXAONE Deep; Seed-OSS; Magistral; Kimi-VL; Command A
# Reasoning; gpt-oss (harmony); OpenThinker and Skywork o1; MedGemma; Granite 3.2.
TAGS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    ("<|start|>assistant<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    ("<unused94>", "<unused95>"),
    ("Here is my thought process:", "Here is my response:"),
)
# A template that ends with the opening tag leaves the closing one alone in the text. A sentence
# or a channel that stands alone is no mark.
ALONE = tuple(close for _, close in TAGS if close.startswith(("</", "[/", "◁/", "<|END", "<|end")))
# What some models (Hunyuan, OpenThinker, Command A) then put around the answer.
_WRAPPER = re.compile(r"\s*(<answer>|<response>|<\|begin_of_solution\|>|<\|START_RESPONSE\|>)?\s*")


class Thought(NamedTuple):
    """What marks the reasoning, and where the answer begins in the text; `answer_at` is None
    where the reasoning was not closed."""

    tag: str
    answer_at: int | None


def thought_in(text: str) -> Thought | None:
    """The reasoning at the start of a text; None: there is none.

    A tag counts where the text begins with it; a closing one alone, too, where no opening one
    stands before it.
    """
    found = _opened(text, 0)
    if found is None:
        ends = [(at, tag) for tag in ALONE if (at := text.find(tag)) >= 0 and _alone(text, at, tag)]
        if not ends:
            return None
        at, tag = min(ends)
        found = Thought(tag, at + len(tag))
    while found.answer_at is not None:
        further = _opened(text, found.answer_at)
        if further is None:
            match = _WRAPPER.match(text, found.answer_at)
            assert match is not None
            return found._replace(answer_at=match.end())
        found = further._replace(tag=found.tag)
    return found


def _alone(text: str, at: int, closing: str) -> bool:
    """Whether nothing before `at` opens what is closed there: a text that speaks of the tags."""
    return all(text.find(one, 0, at) < 0 for one, other in TAGS if other == closing)


def _opened(text: str, start: int) -> Thought | None:
    begin = len(text) - len(text[start:].lstrip())
    for opening, closing in TAGS:
        if text.startswith(opening, begin):
            at = text.find(closing, begin + len(opening))
            return Thought(opening, None if at < 0 else at + len(closing))
    return None


def words(tag: str) -> str:
    """What was found, and how to get it out of the text."""
    return (
        f"the text begins with reasoning ({tag}): ttft and the first sentence are those of the "
        "answer behind it. To have it in a channel of its own: llama.cpp --jinja "
        "--reasoning-format deepseek, vLLM and SGLang --reasoning-parser, Ollama "
        '"think": true; to have none: '
        """--llm-body='{"chat_template_kwargs": {"enable_thinking": false}}'"""
    )
