"""Reasoning that a model writes into its text, and where the answer begins behind it. Pure.

Models mark it by tags; a server that knows them (llama.cpp's --reasoning-format, the
--reasoning-parser of vLLM and SGLang) sends it in a channel of its own. Knows texts alone.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# (what opens a thought, what closes it), by the chat templates and model cards of: DeepSeek R1,
# Qwen 3 and many others; Claude-like prompts; EXAONE Deep; Seed-OSS; Magistral; Kimi-VL; Command A
# Reasoning; LongCat; Hunyuan 3; gpt-oss (harmony); OpenThinker and Skywork o1; Apertus; MedGemma;
# Gemma 4.
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
    ("<longcat_think>", "</longcat_think>"),
    ("<think:opensource>", "</think:opensource>"),
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    ("<|channel|>commentary", "<|channel|>final<|message|>"),
    ("<|start|>assistant<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<unused94>", "<unused95>"),
    ("<|channel>thought", "<channel|>"),
)
# Words that may as well begin an answer, and count only where both are there: Granite's, Apriel's,
# and what is left of gpt-oss's where its special tokens are dropped.
WORDS = (
    ("Here is my thought process:", "Here is my response:"),
    ("Here's my thought process:", "Here's my response:"),
    ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ("analysis", "assistantfinal"),
)
# A template that ends with the opening tag leaves the closing one alone in the text. A sentence
# that stands alone is no mark.
_ALONE = ("</", "[/", "◁/", "<|END", "<|end", "<|channel|>final")
ALONE = tuple(dict.fromkeys(close for _, close in TAGS if close.startswith(_ALONE)))
ALONE += ("[BEGIN FINAL RESPONSE]",)
_QUOTES = "`'\"\u201c\u2018\u00ab"
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
    stands before it. One in quotes is what the text speaks of.
    """
    found = _opened(text, 0)
    if found is None:
        ends = [
            (at, tag) for tag in ALONE if (at := _find(text, tag)) >= 0 and _alone(text, at, tag)
        ]
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
    before, behind = text[:at], text[at + len(closing) :]
    if before.endswith(tuple(_QUOTES)):
        return False
    # In the middle of a sentence it is what the sentence speaks of.
    if before.endswith(" ") and behind[:1] == " " and behind[1:2].islower():
        return False
    return all(_find(text[:at], one) < 0 for one, other in TAGS if other == closing)


def _opened(text: str, start: int) -> Thought | None:
    begin = len(text) - len(text[start:].lstrip())
    for opening, closing in (*TAGS, *WORDS):
        if text[begin : begin + len(opening)].lower() == opening.lower():
            at = _find(text, closing, begin + len(opening))
            if at >= 0 or (opening, closing) in TAGS:
                return Thought(opening, None if at < 0 else at + len(closing))
    return None


def _find(text: str, tag: str, start: int = 0) -> int:
    """Where a tag stands, in capitals or not; -1: nowhere."""
    match = re.compile(re.escape(tag), re.IGNORECASE).search(text, start)
    return -1 if match is None else match.start()


def words(tag: str) -> str:
    """What was found, and how to get it out of the text."""
    return (
        f"the text begins with reasoning ({tag}): ttft and the first sentence are those of the "
        "answer behind it. To have it in a channel of its own: llama.cpp --jinja "
        "--reasoning-format deepseek, vLLM and SGLang --reasoning-parser, Ollama "
        '"think": true; to have none: '
        """--llm-body='{"chat_template_kwargs": {"enable_thinking": false}}'"""
    )
