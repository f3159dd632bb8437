"""Which language is spoken, and what becomes of a sentence in it."""

from __future__ import annotations

import gettext
import re
import subprocess
import sys
import time
from dataclasses import replace
from typing import get_args

import pytest

from pytest_llm_latency.evidence.run_index import Outcome
from pytest_llm_latency.language import Language, default_code, language, template
from pytest_llm_latency.report.terminal import Lines, columns, write_comparison, write_summary
from pytest_llm_latency.verdicts.verdict import Cause, Verdict

ZH = language("zh")


@pytest.mark.parametrize(
    ("environment", "code"),
    [
        ({}, "en"),
        ({"LANG": "C"}, "en"),
        ({"LANG": "C.UTF-8", "LANGUAGE": "zh_CN"}, "en"),
        ({"LANG": "POSIX", "LANGUAGE": "zh_CN"}, "en"),
        ({"LANGUAGE": "zh_CN"}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN"}, "zh"),
        ({"LANG": "zh_CN.GB18030@pinyin"}, "zh"),
        ({"LANG": "zh_SG.UTF-8"}, "zh"),
        ({"LANG": "zh-Hans-CN"}, "zh"),
        ({"LANG": "zh"}, "zh"),
        ({"LANG": "zh_TW.UTF-8"}, "en"),
        ({"LANG": "zhuang"}, "en"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LANG": "\udcff no locale"}, "en"),
        ({"LANG": "en_US.UTF-8"}, "en"),
        ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_MESSAGES": "en_US.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LC_ALL": "zh_CN.UTF-8", "LC_MESSAGES": "C", "LANG": "C"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": ""}, "zh"),
        ({"LANG": "en_US.UTF-8", "LANGUAGE": "zh_CN:en"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LANGUAGE": "en:zh_CN"}, "en"),
        ({"LANG": "de_DE.UTF-8", "LANGUAGE": "de:zh_CN"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LANGUAGE": "fr"}, "en"),
    ],
)
def test_the_default_is_the_locale_s_and_english_where_in_doubt(
    environment: dict[str, str], code: str
) -> None:
    assert default_code(environment) == code


def test_english_is_as_it_is() -> None:
    assert language("en").say("idle 3 ms after the close") == "idle 3 ms after the close"
    assert (language("en")._("files"), language("en").tag, ZH.tag) == ("files", "en", "zh-CN")


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("t_ms never falls", "t_ms 从不倒退"),
        ("64 pieces, [DONE]", "64 个片段，[DONE]"),
        ("58, 520, 1,363 tokens", "58, 520, 1,363 个 token"),
        ("prompt_n not reported and 7, ttft none and 1.5 ms", "prompt_n 未报告 与 7，ttft 无 与 1.5 ms"),
        # with braces of its own
        (
            "all that it might generate went into reasoning (its first token came after 7 ms), so that there "
            "is no answer to time: let it generate more (max_tokens), or turn reasoning off "
            """(--llm-body='{"chat_template_kwargs": {"enable_thinking": false}}')""",
            "允许生成的 token 全部用在了推理上（它的首个 token 在 7 ms 后到来），没有可以计时的回答：请让它多生成一些"
            """（max_tokens），或者关闭推理（--llm-body='{"chat_template_kwargs": {"enable_thinking": false}}'）""",
        ),
        # composed
        (
            "12 pieces came in 1 read within 0.2 ms, after 1.4 s; the server generated them in 1.3 s; "
            "but this process itself waited 700 ms for a core: the machine is too busy to tell who was "
            "late. Measure again when it is quiet",
            "12 个片段在 1.4 s 之后，于 0.2 ms 之内经 1 次读取全部到来；服务器生成它们用了 1.3 s；但本进程自己等 "
            "CPU 核心就等了 700 ms：机器太忙，说不清是谁慢。请等机器空闲时再测",
        ),
        # what an upstream's words are put behind, where a cause had its own end
        (
            "the slot was still busy, 3.0 s after the close: the disconnect never reached the server. A "
            "proxy between? In nginx: proxy_ignore_client_abort off. Measured directly at the server "
            "behind, it holds (idle 3 ms after the close): what stands between is to blame",
            "断开 3.0 s 之后，槽（slot）仍然在忙：断开的消息从未到达服务器。中间有代理吗？nginx 请用 "
            "proxy_ignore_client_abort off。直接在后面的服务器上测量，则成立（断开后 3 ms 空闲）：问题出在两者之间",
        ),
        ("cache/first-1: HTTP 500: no room", "cache/first-1: HTTP 500: no room"),
        # a server's words
        ("a server said so", "a server said so"),
        ("", ""),
    ],
)  # fmt: skip
def test_sentences(sentence: str, shown: str) -> None:
    assert ZH.say(sentence) == shown


def spoken(*pairs: tuple[str, str]) -> Language:
    """A language of these sentences alone."""
    templates = sorted((template(*pair) for pair in pairs), key=lambda one: -one.weight)
    return Language("xx", "xx", gettext.NullTranslations(), templates)


def test_the_sentence_with_the_most_words_of_its_own_wins() -> None:
    said = spoken(("{a} tokens", "A {a}"), ("{a} of {b} prompt tokens", "B {b} {a}"))
    assert said.say("3 of 4 prompt tokens") == "B 4 3"
    assert said.say("3 tokens") == "A 3"


def test_the_whole_sentence_must_match() -> None:
    said = spoken(("idle {a} after", "I {a}"))
    for text in ("idle 3 after all", "was idle 3 after", "idle 3", "idle after", ""):
        assert said.say(text) == text


def test_gaps_take_what_they_are_called_after() -> None:
    said = spoken(("{a_number} tokens", "N {a_number}"), ("in {a_time} or so", "T {a_time}"))
    for text in ("3", "1,363", "0.2", "1e-05", "90%", "58, 520", "-3", "not reported"):
        assert said.say(f"{text} tokens") == f"N {text}"
    for text in ("some", "3 more", "", "3 of 4"):
        assert said.say(f"{text} tokens") == f"{text} tokens"
    assert said.say("in 1,200 ms or so") == "T 1,200 ms"
    assert said.say("in 1,200 s or so") == "in 1,200 s or so"


def test_names_words_and_quotes_are_never_translated() -> None:
    for kind in ("name", "quoted", "word"):
        said = spoken(
            ("idle{a}", "I{a}"), (f"step {{s_{kind}}}: {{rest}}", f"S {{s_{kind}}}: {{rest}}")
        )
        assert said.say("step idle3: idle3") == "S idle3: I3"


def test_what_stands_behind_quotes_is_not_in_them() -> None:
    said = spoken(("it said {a_quoted}", "S {a_quoted}"), ("{a}. So what", "{a}. W"))
    for text in (
        "'x'",
        '"it\'s"',
        "b'\x00'",
        "KeyError('x')",
        "['a', 'b']",
        "None",
        "0.5",
        "'a\nb'",
    ):
        assert said.say(f"it said {text}") == f"S {text}"
        assert said.say(f"it said {text}. So what") == f"S {text}. W"


@pytest.mark.parametrize("outcome", get_args(Outcome))
def test_a_verdict_in_lines(outcome: Outcome) -> None:
    verdict = replace(VERDICTS[2], outcome=outcome)
    assert verdict.lines()[0] == f"cache: {outcome}: second < first in ttft"
    first, *more = verdict.lines(ZH.say)
    assert re.fullmatch(r"cache: [\u4e00-\u9fff]+: second < first（ttft）", first)
    assert more == ["  3 ms 对 2 ms", "  原因 x: 没有文字"]


@pytest.mark.parametrize(
    "words",
    [
        "{sentence}",
        "{0}",
        "{a} {b} {a.__class__}",
        "%s %(a)s",
        r"\1 \g<0> \n",
        "{{}}",
        "\x00 {a}",
        "{",
    ],
)
def test_words_of_a_server_are_text_whatever_they_look_like(words: str) -> None:
    said = spoken(("it said {a}, then {b}", "{b} <- {a}"))
    assert said.say(f"it said {words}, then {words}") == f"{words} <- {words}"


@pytest.mark.parametrize(
    "text",
    [
        "x" * 100_000,
        ": " * 50_000,
        "a: " * 33_334,
        "1," * 50_000 + " tokens",
        "1" * 50_000 + " against " + "1" * 50_000 + "! tokens",
        ", total " * 12_500,
        "; not: " * 15_000,
        " tokens processed, idle " * 4_000 + " after the close",
        ". Measured directly at the server behind, it holds (" * 2_000,
        "  cause x: " * 10_000,
        "second < " * 11_112 + " in ttft",
    ],
    ids=lambda text: text[:12],
)
def test_a_long_hostile_sentence_takes_no_time(text: str) -> None:
    begun = time.process_time()
    ZH.say(text)
    assert time.process_time() - begun < 2.0


def test_the_code_of_a_language_is_one_of_ours() -> None:
    with pytest.raises(KeyError):
        language("fr")


# --- the table ---

VERDICTS = [
    Verdict("sse", "t_ms never falls", "holds", "64 pieces"),
    Verdict("cancel", "the close stops the server: the slot goes idle", "inconclusive", "no answer"),
    Verdict("cache", "second < first in ttft", "broken", "3 ms against 2 ms", Cause("x", "no text")),
    Verdict("server", "/props: model path, n_ctx > 0, total_slots >= 1", "not measurable", "HTTP 404",
            Cause("not-offered", "this server offers no /props")),
    Verdict("own", "e\u0301 \uff21 combined and wide", "holds", ""),
]  # fmt: skip


def test_columns_of_a_terminal() -> None:
    assert [columns(text) for text in ("abc", "预填充", "，", "e\u0301", "\uff21b", "")] == [
        3,
        6,
        2,
        1,
        3,
        0,
    ]


@pytest.mark.parametrize("code", ["en", "zh"])
def test_the_columns_stand_below_each_other(code: str) -> None:
    lines = Lines()
    write_summary(lines, language(code), "LLM latency", [], "evidence", VERDICTS, [], [])
    rows = lines.text().split("\n")[1:]
    words = [
        language(code)._(word)
        for word in ("holds", "INCONCLUSIVE", "BROKEN", "not measurable", "holds")
    ]
    assert code == "en" or not any(word.isascii() for word in words)
    starts = {columns(row[: row.rindex(f"  {word}")]) for row, word in zip(rows, words)}
    assert len(starts) == 1


def test_the_table_in_english_is_as_it_was() -> None:
    lines = Lines()
    write_summary(
        lines, language("en"), "LLM latency", [], "contract", VERDICTS[:1], [("sse", "x")], []
    )
    assert lines.text().split("\n")[1:] == [
        "sse  t_ms never falls  holds   on contract  64 pieces",
        "note: sse: x",
    ]


def test_targets_side_by_side() -> None:
    figures = {"url1": {"ttft_p50_ms": 2.0}, "url2": {"ttft_p50_ms": 3.0}}
    lines = Lines()
    write_comparison(lines, ZH, figures | {"url1": {"ttft_p50_ms": 2.0, "total_p50_ms": 4.0}})
    _, head, *rows = lines.text().split("\n")
    assert {columns(row) for row in rows[:-1]} == {columns(head)}
    assert any(row.startswith("整个回答") for row in rows)


def test_a_language_may_lack_words() -> None:
    """What has no translation stays as it is."""
    assert replace(ZH, templates=()).say("idle 3 ms after the close") == "idle 3 ms after the close"


def test_no_catalogue_is_read_before_somebody_reads() -> None:
    """The plugin is loaded in every pytest run of everyone who has it."""
    program = (
        "import pytest_llm_latency.plugin; from pytest_llm_latency.language import language; "
        "print(language.cache_info().currsize)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "0"
