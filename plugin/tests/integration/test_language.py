"""What a person reads in Chinese, and what stays as it is."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from catalogue import left_in_english
from engines import lm_studio
from scripted import Request, relay, serving

from pytest_llm_latency.report.terminal import columns

from .conftest import Run, summary
from .test_screen import on_a_terminal

LOCALE = ("LC_ALL", "LC_MESSAGES", "LANG", "LANGUAGE")
CHINESE = re.compile(r"[\u3000-\u9fff\uff00-\uffef]")


@pytest.fixture
def no_cache(serve: Callable[..., str]) -> Iterator[str]:
    """The real server behind one that turns its prompt cache off."""

    def edit(request: Request) -> None:
        if request.body and "cache_prompt" in request.body:
            request.body["cache_prompt"] = False

    with serving(relay(serve(), edit)) as proxy:
        yield proxy.base_url


def table(result: pytest.RunResult) -> list[str]:
    """The lines from the table on."""
    lines: list[str] = result.outlines
    start = next(i for i, line in enumerate(lines) if " LLM latency " in line)
    return lines[start + 1 :]


@pytest.mark.zoo
def test_a_run_in_chinese(lab: Run, no_cache: str, pytester: pytest.Pytester) -> None:
    result = lab(f"--llm-url={no_cache}", "-k", "sse or cache", "--llm-lang=zh", own_server=False)
    result.assert_outcomes(passed=1, failed=1, deselected=6)
    result.stdout.fnmatch_lines(
        [
            f"llm-latency: 服务器：{no_cache}",
            "llm-latency: 时钟：时间戳晚 *的差别是噪声",
            f"llm-latency: 文件：{pytester.path}/voice/llm",
            "cache: 不成立: second < first（prompt_n）",
            "  * 对 * 个 token",
            "  原因 cache-never-hits: * 个 token 又被重新处理，复用了 0 个，而提示词一字不差：*",
            f"服务器：{no_cache}（url），模型 tiny.gguf，n_ctx *",
            "服务器：提供 health, *",
            "sse * 流有结束标志 * 成立 * 个片段，[[]DONE]",
            "备注: cache: 会变的那一行放在最前面：*",
            f"文件: {pytester.path}/voice/llm",
        ]
    )
    said = [line for line in result.outlines if re.match(r"(sse|cache|备注|  )", line)]
    assert not list(filter(left_in_english, said))
    rows = [line for line in table(result) if re.match(r"(sse|cache) ", line)]
    # the numbers stand below each other, behind words of two columns a letter
    ends = {columns(re.split(r"(?:成立|不成立|无定论) +", row)[0].rstrip("不")) for row in rows}
    assert len(rows) >= 9
    assert len(ends) == 1
    text = (pytester.path / "voice" / "llm" / "run.json").read_text("utf-8")
    assert not CHINESE.search(text)
    (run,) = json.loads(text)["runs"].values()
    assert run["options"]["lang"] == "zh"


@pytest.mark.zoo
def test_a_run_in_chinese_is_graded_in_any_language(
    lab: Run, no_cache: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ("-k", "sse or cache", "--llm-lang=zh")
    lab(f"--llm-url={no_cache}", *args, own_server=False)
    grading = ("-k", "sse or cache", "--llm-grade=voice/llm")
    for code, words in (
        ("zh", "每个值都能从字节重新推导出来"),
        ("en", "every value is derived again"),
    ):
        monkeypatch.delenv("LLM_LANG", raising=False)
        monkeypatch.setenv("LC_ALL", {"zh": "zh_CN.UTF-8", "en": "C.UTF-8"}[code])
        result = lab(*grading, own_server=False)
        result.assert_outcomes(passed=1, failed=1, deselected=6)
        assert not re.search("run.json: verdicts", summary(result))
        result.stdout.fnmatch_lines([f"*{words}*"])
        rows = [line for line in result.outlines if re.match(r"(sse|cache) ", line)]
        basis = {"zh": "  依据证据  ", "en": "  on evidence  "}[code]
        assert len(rows) == sum(basis in row for row in rows) == 22
    missing = pytester.path / "voice" / "llm" / "cache.json"
    missing.unlink()
    result = lab("-k", "cache", "--llm-grade=voice/llm", "--llm-lang=zh", own_server=False)
    result.stdout.fnmatch_lines(["llm-latency: 正在评分 *，依据证据：*", "cache.json：缺失"])


def test_a_skip_in_chinese(lab: Run) -> None:
    with serving(lm_studio().script) as server:
        args = (f"--llm-url={server.base_url}", "-k", "server", "-rs", "--llm-lang=zh")
        result = lab(*args, own_server=False)
    result.stdout.fnmatch_lines(
        [
            "llm-latency: 开销：按实验自己的计划，至少 * 个请求、* 个 token*",
            "server * 没有 /health；/v1/models：列出了模型 * 成立 *",
            "server * 无法测量 * 这台服务器不提供 /props",
            "SKIPPED * 这台服务器不提供 /props",
        ]
    )


@pytest.mark.parametrize(
    ("locale", "option", "is_chinese"),
    [
        ({"LC_ALL": "zh_CN.UTF-8"}, [], True),
        ({"LANG": "zh_CN.UTF-8"}, [], True),
        ({"LANG": "zh_CN.UTF-8"}, ["--llm-lang=en"], False),
        ({"LANG": "de_DE.UTF-8"}, [], False),
        ({}, [], False),
        ({}, ["--llm-lang=zh"], True),
    ],
)
def test_the_locale_is_asked_where_no_option_is_given(
    refused: Run, monkeypatch: pytest.MonkeyPatch, locale: Any, option: list[str], is_chinese: bool
) -> None:
    for name in (*LOCALE, "LLM_LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in locale.items():
        monkeypatch.setenv(name, value)
    words = summary(refused("--llm-kb=nowhere", *option))
    assert ("--llm-kb：知识库 " in words and "nowhere 不存在" in words) == is_chinese
    assert ("the knowledge base" in words) != is_chinese


@pytest.mark.parametrize("place", ["--llm-lang", "environment variable LLM_LANG", "llm_lang in "])
def test_a_language_that_there_is_not(
    refused: Run, monkeypatch: pytest.MonkeyPatch, pytester: pytest.Pytester, place: str
) -> None:
    monkeypatch.delenv("LLM_LANG")
    args = []
    if place.startswith("--"):
        args = ["--llm-lang=fr"]
    elif place.startswith("env"):
        monkeypatch.setenv("LLM_LANG", "fr")
    else:
        pytester.makeini("[pytest]\nllm_lang = fr\n")
    result = refused(*args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert re.search(f"{place}.*: 'fr' is not right; give one of en, zh", summary(result))


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_terminal_with_and_without_the_letters(
    tmp_path: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    screen = on_a_terminal(
        [
            sys.executable, "-m", "pytest", "--pyargs", "test_llm_latency", "-p", "no:cacheprovider",
            f"--llm-gguf={tiny_gguf}", "--llm-server=local", "-k", "prefill", "--llm-lang=zh",
        ],
        tmp_path,
    )  # fmt: skip
    assert "1 passed" in screen
    assert ("\x1b7\x1b[K 预填充 4 份文档，第 1 轮\x1b8" in screen) == (encoding == "utf-8")
