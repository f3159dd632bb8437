"""Every bad input: one clear line that names what, where and what to do; nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted import Connection, Request, end_events, serving, text_event

from pytest_llm_latency import sse
from pytest_llm_latency.errors import ConfigError
from pytest_llm_latency.plan import Plan
from pytest_llm_latency.servers.own_command import own_command
from pytest_llm_latency.servers.process import free_port
from pytest_llm_latency.steps.bench import check_plan

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
        (["--llm-url=http://host:99999"], "such as http://localhost:8080"),
        (["--llm-url=http://exa mple"], "such as http://localhost:8080"),
        (["--llm-url=http://..:80"], "such as http://localhost:8080"),
        (["--llm-url=http://[::1"], "such as http://localhost:8080"),
        (["--llm-artifacts=~nouser/x"], "there is no such user"),
        (["--llm-server-args=--port 1"], "arguments without --port: address, port and model are chosen here"),
        (["--llm-page=run.json"], "--llm-page: 'run.json' is not right; give a file whose name ends with .html"),
        (["--llm-page=x.html", "--llm-url=http://127.0.0.1:1", "--llm-url=http://127.0.0.1:2"], "several targets do not go with a page"),
        (["--llm-max-bytes=0.5"], "a whole number of bytes"),
        (["--llm-url=http://host/?x=1"], "a URL without ? and #"),
        (["--llm-url=https://x.openai.azure.com/openai/deployments/X/chat/completions?api-version=1"], "a URL without ? and #; of Azure: https://x.openai.azure.com/openai/v1, the deployment as --llm-model"),
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
        (["--llm-max-bytes=-1"], "a whole number of bytes, at least 1"),
        (["--llm-server-args='"], "arguments as a shell splits them"),
        (["--llm-api-key-file=/nowhere"], "--llm-api-key-file: cannot read /nowhere"),
        (["--llm-artifacts=/etc/hostname"], "--llm-artifacts: /etc/hostname is not a directory"),
        (["--llm-artifacts=/etc/hostname/below"], "lies below a file"),
    ],
)  # fmt: skip
def test_options(refused: Run, tiny_gguf: Path, args: list[str], words: str) -> None:
    own = not any(arg.startswith(("--llm-url", "--llm-server=", "--llm-gguf")) for arg in args)
    server = [f"--llm-gguf={tiny_gguf}", "--llm-server=local"] if own else []
    assert words in usage_error(refused(*server, *args))


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
        result = lab(f"--llm-artifacts={directory}", "-k", "server or sse or ttft")
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
    words = setup_error(
        lab(
            "--llm-url=http://127.0.0.1:9",
            "--llm-start-timeout=0.2",
            "-k",
            "server",
            own_server=False,
        )
    )
    assert "GET http://127.0.0.1:9/health: [Errno 111] Connection refused" in words


def answering(status: str, body: str, content_type: str = "text/html") -> Callable[..., None]:
    def script(connection: Connection, _: Request) -> None:
        connection.head(status=status, content_type=content_type)
        connection.send(body)

    return script


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        ("200 OK", "<html>Welcome", "is not an LLM server: GET /v1/models gives no model list, POST /v1/chat/completions gives HTTP 200, GET /models gives no model list, POST /chat/completions gives HTTP 200 ('<html>Welcome'); --llm-url takes the base URL that an OpenAI client is given"),
        ("404 Not Found", "gone", "is not an LLM server: GET /v1/models gives HTTP 404, POST /v1/chat/completions gives HTTP 404, GET /models gives HTTP 404, "),
        ("401 Unauthorized", "{}", "wants an API key (HTTP 401); give one with --llm-api-key-file FILE or LLM_API_KEY"),
    ],
)  # fmt: skip
def test_what_is_no_llm_server(lab: Run, status: str, body: str, words: str) -> None:
    with serving(answering(status, body)) as server:
        result = lab(f"--llm-url={server.base_url}", "-k", "server", own_server=False)
    assert words in setup_error(result)


def test_a_redirect_is_named_and_not_followed(
    lab: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_API_KEY", "correct-horse")

    def redirect(connection: Connection, request: Request) -> None:
        connection.send(
            "HTTP/1.1 301 Moved Permanently\r\nContent-Length: 0\r\n"
            f"Location: https://me:battery@elsewhere.example{request.target}?t=battery\r\n\r\n"
        )

    with serving(redirect) as server:
        result = lab(f"--llm-url={server.base_url}", "-k", "sse", own_server=False)
        program = Path(sse.__file__)
        command = [sys.executable, str(program), "--url", server.base_url]
        done = subprocess.run(
            command, cwd=pytester.path, capture_output=True, text=True, check=False
        )
    assert done.returncode == 1
    for told in (setup_error(result), done.stderr):
        assert "redirects to https://elsewhere.example/v1" in told
        assert "--llm-url=https://elsewhere.example/v1" in told
        assert "battery" not in told
        assert "Traceback" not in told


def test_a_wrong_key_and_the_right_one(
    lab: Run, serve: Callable[..., str], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = serve(LLAMA_API_KEY="correct-horse")
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
        lab(*args, own_server=False).assert_outcomes(skipped=1, deselected=7)  # /props is no props
        assert asked.index("/v1/models") == 4
        asked.clear()
        words = setup_error(lab(*args, "--llm-start-timeout=0.05", own_server=False))
    assert "/health still says 503 (loading) after 0.05 s" in words


def test_a_server_that_begins_to_listen_late_is_waited_for(lab: Run, tiny_gguf: Path) -> None:
    """What `docker run -d` and then pytest is: nothing listens for a moment."""
    port = free_port()
    command = own_command("local", tiny_gguf, port, ())
    late = subprocess.Popen(
        ["sh", "-c", 'sleep 2; exec "$@"', "sh", *command], stderr=subprocess.DEVNULL
    )
    try:
        lab(f"--llm-url=http://127.0.0.1:{port}", "-k", "server", own_server=False).assert_outcomes(
            passed=1, deselected=7
        )
    finally:
        late.kill()
        late.wait()


def test_one_sentence_is_shown_once(lab: Run) -> None:
    printed = summary(lab("--llm-server-args=--ctx-size 2048", "-k", "cache"))
    assert "During handling" not in printed
    assert printed.count("does not fit the server's context") <= 2  # the error, the short summary


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"version": 1, "runs": []}', '{"format": "pytest-llm-latency/run", "version": 1, "runs": {}, "steps": {"ttft": 3}, "failures": {}, "artifacts": {}}']
)  # fmt: skip
def test_a_run_json_that_is_none_is_begun_anew(
    lab: Run, pytester: pytest.Pytester, content: str
) -> None:
    directory = pytester.path / "voice" / "llm"
    directory.mkdir(parents=True)
    (directory / "run.json").write_text(content)
    lab("-k", "server").assert_outcomes(passed=1, deselected=7)


def test_ini_paths_start_from_the_ini_file(pytester: pytest.Pytester, tiny_gguf: Path) -> None:
    pytester.makeini(f"[pytest]\nllm_kb = kb\nllm_gguf = {tiny_gguf}\nllm_server = local\n")
    directory = pytester.mkdir("kb")
    for number in range(12):
        (directory / f"{number:02}.md").write_text(f"Document {number}.")
    pytester.mkdir("below")
    os.chdir(pytester.path / "below")
    pytester.runpytest_subprocess("--pyargs", "test_llm_latency", "-k", "sse").assert_outcomes(
        passed=1, deselected=7
    )
    assert (pytester.path / "below" / "voice" / "llm" / "chunks.jsonl").exists()


def test_a_key_meant_for_other_servers_does_not_lock_out_our_own(
    lab: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_API_KEY", "for-another")
    lab("-k", "server or sse").assert_outcomes(passed=2, deselected=6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"doc_counts": (0, 12, 24)}, "doc_counts (0, 12, 24) asks for more than the 12 documents"),
        ({"doc_counts": ()}, "doc_counts () must be two or more, ascending"),
        ({"doc_counts": (3, 1)}, "must be two or more, ascending"),
        ({"ttft_runs": 0}, "ttft_runs is 0; it must be at least 1"),
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"cancel_close_at_ms": 0.0}, "cancel_close_at_ms is 0; it must be above 0"),
    ],
)
def test_a_plan_that_cannot_be_carried_out(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_plan(replace(Plan(), **changes), ("document",) * 12)
    assert words in str(error.value)


def test_a_plan_is_checked_before_a_server_starts(lab: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        from dataclasses import replace
        import pytest
        from pytest_llm_latency.plan import Plan

        @pytest.fixture(scope="session")
        def llm_plan():
            return replace(Plan(), doc_counts=(0, 12, 24))
        """
    )
    words = setup_error(lab("-k", "prefill"))
    assert "llm_plan: doc_counts (0, 12, 24) asks for more than the 12 documents" in words
    assert not (pytester.path / "voice" / "llm" / ".server.log").exists()


def test_a_run_json_that_points_outside_deletes_nothing(
    lab: Run, pytester: pytest.Pytester
) -> None:
    precious = pytester.path / "precious.txt"
    precious.write_text("keep me")
    directory = pytester.path / "voice" / "llm"
    directory.mkdir(parents=True)
    entry = {"step": "sse", "run": "x", "sha256": ""}
    (directory / "run.json").write_text(
        json.dumps(
            {
                "format": "pytest-llm-latency/run", "version": 1, "run": "x", "runs": {},
                "steps": {}, "failures": {}, "artifacts": {"../../precious.txt": entry},
            }
        )
    )  # fmt: skip
    lab("-k", "sse").assert_outcomes(passed=1, deselected=7)
    assert precious.read_text() == "keep me"


ODD = {
    "half an emoji": (text_event("\ud83d") + text_event("b") + end_events(), "passed"),
    "timings that are a list": (
        text_event("a") + text_event("b", timings=[1, 2]) + end_events(),
        "passed",
    ),
    "usage that is a string": (
        text_event("a") + text_event("b", usage="many") + end_events(),
        "passed",
    ),
    "NaN": (
        text_event("a") + text_event("b", timings={"prompt_ms": float("nan")}) + end_events(),
        "passed",
    ),
    "a huge number": (
        text_event("a") + text_event("b", timings={"prompt_ms": 10**400}) + end_events(),
        "passed",
    ),
    "nested without end": ("data: " + "[" * 200_000 + "\n\n" + end_events(), "failed"),
}


@pytest.mark.parametrize("odd", ODD)
def test_odd_answers_are_no_tracebacks(lab: Run, odd: str) -> None:
    stream, outcome = ODD[odd]

    def script(connection: Connection, request: Request) -> None:
        if request.target == "/v1/chat/completions":
            connection.head()
            first, _, rest = stream.partition("\n\n")
            connection.send(first + "\n\n")
            time.sleep(0.05)
            connection.send(rest)
        else:
            connection.reply({"data": [], "tokens": 5, "prompt": "x"})

    with serving(script) as server:
        result = lab(f"--llm-url={server.base_url}", "-k", "sse", own_server=False)
    printed = summary(result)
    assert "Traceback" not in printed
    assert "pytest_llm_latency/" not in printed
    assert result.parseoutcomes()[outcome] == 1, printed


def test_a_fixture_asked_for_too_late_is_explained(
    pytester: pytest.Pytester, tiny_gguf: Path
) -> None:
    pytester.makepyfile("def test_one(request): request.getfixturevalue('llm_client')")
    result = pytester.runpytest_subprocess(f"--llm-gguf={tiny_gguf}", "--llm-server=local")
    assert "a test must name its llm_* fixtures as arguments" in summary(result)
