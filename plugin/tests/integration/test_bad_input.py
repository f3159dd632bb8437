"""Every bad input: one clear line that names what, where and what to do; nothing is lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scripted import Connection, Request, serving

from .conftest import Run, summary

USAGE = pytest.ExitCode.USAGE_ERROR


def usage_error(result: pytest.RunResult) -> str:
    """The one line of a usage error."""
    assert result.ret == USAGE, summary(result)
    lines = [line for line in result.errlines if line.startswith("ERROR: ")]
    assert len(lines) == 1, summary(result)
    assert "Traceback" not in summary(result)
    return lines[0].removeprefix("ERROR: ")


def setup_error(result: pytest.RunResult) -> str:
    """The line that every test of a run without a server shows."""
    result.assert_outcomes(errors=1, deselected=7)
    assert "Traceback" not in summary(result)
    assert "pytest_llm_latency/" not in summary(result).replace("site-packages", "")
    return summary(result)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--llm-url=localhost:8080"], "--llm-url: 'localhost:8080' is not right; give a URL with scheme"),
        (["--llm-url=http://me:pw@host"], "give a URL without a password in it"),
        (["--llm-server=cloud"], "--llm-server: 'cloud' is not right; give one of auto, url, voice-llm"),
        (["--llm-server=url"], "--llm-server url needs --llm-url"),
        (["--llm-server=llama-server"], "needs a model: --llm-gguf FILE"),
        (["--llm-server=voice-llm"], "none is running; start it: voice-llm up"),
        (["--llm-gguf=/nowhere/m.gguf"], "cannot read /nowhere/m.gguf: No such file"),
        (["--llm-gguf=/etc/hostname"], "/etc/hostname is not a GGUF file"),
        (["--llm-kb=/nowhere"], "--llm-kb: the knowledge base /nowhere does not exist"),
        (["--llm-log=/nowhere/log"], "--llm-log: cannot read /nowhere/log"),
        (["--llm-log=/etc/hostname", "--llm-log-command=true"], "give one of the two"),
        (["--llm-start-timeout=soon"], "--llm-start-timeout: 'soon' is not right; give a number above 0"),
        (["--llm-max-bytes=-1"], "give a number above 0"),
        (["--llm-server-args='"], "arguments as a shell splits them"),
        (["--llm-api-key-file=/nowhere"], "--llm-api-key-file: cannot read /nowhere"),
        (["--llm-artifacts=/etc/hostname"], "--llm-artifacts: /etc/hostname is not a directory"),
        (["--llm-artifacts=/etc/hostname/below"], "lies below a file"),
    ],
)  # fmt: skip
def test_options(lab: Run, args: list[str], words: str) -> None:
    own = not any(arg.startswith(("--llm-url", "--llm-server=", "--llm-gguf")) for arg in args)
    assert words in usage_error(lab(*args, own_server=own))


def test_the_source_of_a_bad_value_is_named(
    lab: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_SERVER", "cloud")
    assert "environment variable LLM_SERVER: 'cloud'" in usage_error(lab(own_server=False))
    monkeypatch.delenv("LLM_SERVER")
    pytester.makeini("[pytest]\nllm_server = moon\n")
    assert "llm_server in " in usage_error(lab(own_server=False))
    # the command line wins over the environment, the environment over the ini file
    monkeypatch.setenv("LLM_SERVER", "local")
    assert "--llm-server: 'sun'" in usage_error(lab("--llm-server=sun", own_server=False))


def test_too_few_documents(lab: Run, pytester: pytest.Pytester) -> None:
    directory = pytester.mkdir("kb")
    (directory / "a.md").write_text("one")
    assert "has 1 *.md files; the lab needs at least 12" in usage_error(lab("--llm-kb=kb"))


def test_a_path_that_hides_the_ini_file_is_named(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\n")
    pytester.makepyfile("def test_one(): pass")
    elsewhere = pytester.mkdir("elsewhere")
    (pytester.path / "pytest.ini").write_text("[pytest]\n")
    result = pytester.runpytest_subprocess("--llm-kb", "/usr/lib")
    assert "write --llm-kb=/usr/lib" in usage_error(result)
    pytester.runpytest_subprocess(f"--llm-kb={elsewhere}").assert_outcomes(passed=1)


@pytest.fixture
def unwritable(pytester: pytest.Pytester) -> Iterator[Path]:
    """A directory into which even root cannot write: a read-only mount."""
    directory = pytester.mkdir("readonly")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro,size=64k", "tmpfs", str(directory)],
        capture_output=True, check=False,
    )  # fmt: skip
    if mounted.returncode != 0:
        if os.geteuid() == 0:
            pytest.skip("this root may not mount")
        directory.chmod(0o500)
    yield directory
    subprocess.run(["umount", str(directory)], capture_output=True, check=False)


def test_an_unwritable_directory(lab: Run, unwritable: Path) -> None:
    assert "--llm-artifacts: cannot write into" in usage_error(
        lab(f"--llm-artifacts={unwritable}/run")
    )


def test_a_full_disk_loses_nothing_measured(lab: Run, pytester: pytest.Pytester) -> None:
    """The raw stream of step 2 fits no more; what step 1 wrote stays whole."""
    directory = pytester.mkdir("full")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(directory)],
        capture_output=True, check=False,
    )  # fmt: skip
    if mounted.returncode != 0:
        pytest.skip("a small file system cannot be mounted here")
    try:
        result = lab(f"--llm-artifacts={directory}")
        outcomes = result.parseoutcomes()
        assert outcomes["failed"] >= 1
        assert outcomes["passed"] >= 1
        assert "No space left on device" in summary(result)
        assert "Traceback" not in summary(result)
        assert "INTERNALERROR" not in summary(result)
        assert (directory / "health.json").read_bytes() == b'{"status":"ok"}'
        assert not list(directory.rglob("*.part"))
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def test_nothing_listens(lab: Run) -> None:
    words = setup_error(lab("--llm-url=http://127.0.0.1:9", "-k", "server", own_server=False))
    assert "GET http://127.0.0.1:9/health: [Errno 111] Connection refused" in words


def answering(status: str, body: str, content_type: str = "text/html") -> Callable[..., None]:
    def script(connection: Connection, _: Request) -> None:
        connection.head(status=status, content_type=content_type)
        connection.send(body)

    return script


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        ("200 OK", "<html>Welcome", "is not an LLM server: GET /v1/models gives no model list ('<html>Welcome')"),
        ("404 Not Found", "gone", "is not an LLM server: GET /v1/models gives HTTP 404"),
        ("401 Unauthorized", "{}", "wants an API key (HTTP 401); give one with --llm-api-key-file FILE or LLM_API_KEY"),
    ],
)  # fmt: skip
def test_what_is_no_llm_server(lab: Run, status: str, body: str, words: str) -> None:
    with serving(answering(status, body)) as server:
        result = lab(f"--llm-url={server.base_url}", "-k", "server", own_server=False)
    assert words in setup_error(result)


def test_a_wrong_key_and_the_right_one(
    lab: Run, serve: Callable[..., str], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_API_KEY", "correct-horse")
    url = serve()
    monkeypatch.delenv("LLAMA_API_KEY")
    args = (f"--llm-url={url}/v1", "-k", "server or ttft")
    monkeypatch.setenv("LLM_API_KEY", "wrong-battery")
    result = lab(*args, own_server=False)
    assert "refuses the API key (HTTP 401)" in summary(result)
    monkeypatch.delenv("LLM_API_KEY")
    (pytester.path / "key").write_text("correct-horse\n")
    result = lab("--llm-api-key-file=key", "--showlocals", *args, own_server=False)
    result.assert_outcomes(passed=2, deselected=6)
    written = [p.read_bytes() for p in (pytester.path / "voice").rglob("*") if p.is_file()]
    assert not any(b"correct-horse" in content for content in written)
    assert "correct-horse" not in summary(result)


def test_a_model_that_the_server_does_not_know(lab: Run) -> None:
    def script(connection: Connection, request: Request) -> None:
        if request.target == "/v1/chat/completions":
            words = f"The model `{request.body['model']}` does not exist."
            connection.reply({"error": {"message": words, "code": 404}}, "404 Not Found")
        else:
            connection.reply({"object": "list", "data": [{"id": "other"}]})

    with serving(script) as server:
        result = lab(
            f"--llm-url={server.base_url}", "--llm-model=mine", "-k", "ttft", own_server=False
        )
    result.assert_outcomes(failed=1, deselected=7)
    assert "ttft/1: HTTP 404: The model `mine` does not exist." in summary(result)


def test_a_prompt_longer_than_the_context_is_named_before_anything_is_measured(
    lab: Run, pytester: pytest.Pytester
) -> None:
    result = lab("--llm-server-args=--ctx-size 2048")
    result.assert_outcomes(errors=7, failed=1)
    result.stdout.fnmatch_lines(
        ["*the longest prompt (with 12 documents and 32 tokens to answer): the prompt of 4* tokens "
         "does not fit the server's context of 2048; start the server with a larger one*"]
    )  # fmt: skip
    assert not (pytester.path / "voice" / "llm" / "sse_raw.txt").exists()
    # a step that asks no long question is measured all the same
    lab("--llm-server-args=--ctx-size 2048", "-k", "ttft").assert_outcomes(passed=1, deselected=7)


def test_a_context_too_small_by_the_server_s_own_words(lab: Run) -> None:
    """No /tokenize, no /props: the same words from its 400."""

    def script(connection: Connection, request: Request) -> None:
        if request.target == "/v1/chat/completions":
            error = {"message": "too long", "code": 400, "n_prompt_tokens": 5000, "n_ctx": 4096}
            connection.reply({"error": error}, "400 Bad Request")
        elif request.target == "/v1/models":
            connection.reply({"object": "list", "data": []})
        else:
            connection.reply({"error": {"message": "no"}}, "404 Not Found")

    with serving(script) as server:
        result = lab(f"--llm-url={server.base_url}", "-k", "prefill", own_server=False)
    result.assert_outcomes(failed=1, deselected=7)
    result.stdout.fnmatch_lines(
        ["*prefill/0docs-1: the prompt of 5000 tokens does not fit the server's context of 4096; *"]
    )


def test_an_unknown_server_argument_shows_the_log(lab: Run) -> None:
    result = lab("--llm-server-args=--no-such-option", "-k", "server")
    words = setup_error(result)
    assert "ended with status 2 before it was healthy; the end of its log:" in words
    assert "unrecognized arguments: --no-such-option" in words


def test_the_local_extra_is_not_installed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = pytester.mkdir("hidden")
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util\n"
        "whole = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'xllamacpp' else whole(name, *a)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(hidden))
    result = pytester.runpytest_subprocess("--pyargs", "test_llm_latency")
    assert usage_error(result) == (
        "no server to measure: none was named and xllamacpp is not installed; name one with "
        "--llm-url URL, or install it with: pip install 'pytest-llm-latency[local]'"
    )


def test_a_server_that_loads_its_model_is_waited_for(lab: Run) -> None:
    asked: list[str] = []

    def script(connection: Connection, request: Request) -> None:
        asked.append(request.target)
        if request.target == "/health" and asked.count("/health") <= 3:
            error = {"error": {"message": "Loading model", "code": 503}}
            connection.reply(error, "503 Service Unavailable")
        elif request.target == "/health":
            connection.reply({"status": "ok"})
        else:
            connection.reply({"data": []})

    with serving(script) as server:
        args = (f"--llm-url={server.base_url}", "-k", "server")
        lab(*args, own_server=False).assert_outcomes(failed=1, deselected=7)  # /props is no props
        assert asked.count("/health") == 5
        asked.clear()
        words = setup_error(lab(*args, "--llm-start-timeout=0.05", own_server=False))
    assert "/health still says 503 (loading) after 0.05 s" in words
