"""The proxies of the zoo: how each is found, configured and run. What it does to a stream is
judged elsewhere."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

import pytest

from pytest_llm_latency.servers.process import free_port, guarded

ROOT = Path(__file__).parents[3]
GATEWAYS = Path(__file__).with_name("gateways")


@dataclass(frozen=True)
class Program:
    """`command` and `config` are templates (`$port`, `$upstream_port`, `$dir`, `$config`,
    `$settings`). `package`: what apt-get installs; `venv`: where the Makefile's target of that name
    puts it instead. `version`: the options that print it."""

    name: str
    command: str
    config: str = ""
    package: str = ""
    venv: str = ""
    version: str = "--version"

    def executable(self) -> str | None:
        """The path of the program; None where it is not installed."""
        places = f"{os.environ['PATH']}:/usr/sbin:/usr/bin"
        if self.venv:
            places = str(ROOT / ".venv" / self.venv / "bin")
        return shutil.which(shlex.split(self.command)[0], path=places)

    def how_to_install(self) -> str:
        """The command."""
        return (
            f"make .venv/{self.venv}.installed" if self.venv else f"apt-get install {self.package}"
        )

    def version_words(self) -> str:
        """The program's version, by its own words; of a gateway that of each of its libraries."""
        command = [self.executable() or "", *shlex.split(self.version)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        first_line = (done.stdout + done.stderr).strip().partition("\n")[0]
        return " + ".join(re.findall(r"(?<![\w.])v?(\d+(?:\.\d+)+)", first_line))


def need(program: Program) -> str:
    """Its path. Where it is not installed the test is skipped; in CI, which installs all, it fails."""
    path = program.executable()
    if path is None:
        give_up = pytest.fail if os.environ.get("CI") else pytest.skip
        give_up(f"{program.name} is not installed ({program.how_to_install()})")
    return path


@contextlib.contextmanager
def running(program: Program, settings: str, directory: Path, upstream_url: str) -> Iterator[str]:
    """The program before `upstream_url` -> its own URL. It listens on 127.0.0.1 alone, and ends
    with the block, or with this process. Raises ServerStartError."""
    executable = program.executable() or program.name
    port, config = free_port(), directory / "config.yaml"
    values: Mapping[str, str] = {
        "port": str(port),
        "upstream": upstream_url.removeprefix("http://"),
        "upstream_port": upstream_url.rpartition(":")[2],
        "dir": str(directory),
        "config": str(config),
        "gateways": str(GATEWAYS),
        "settings": settings,
        # Those that drop their rights cannot write into a directory of the tests.
        "as_root": "" if os.geteuid() == 0 else "#",
    }
    config.write_text(Template(program.config).substitute(values))
    _, *args = shlex.split(Template(program.command).substitute(values))
    # What it keeps of itself (Caddy's identity, mitmproxy's keys) goes with the directory.
    home = {name: str(directory) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    url = f"http://127.0.0.1:{port}"
    with guarded(
        [executable, *args], directory / "log", url, 60.0, lambda _: None, {**os.environ, **home}
    ):
        yield url


NGINX = Program(
    "nginx",
    "nginx -p $dir -c $config",
    """
daemon off; pid $dir/pid; error_log $dir/error.log;
${as_root} user root;
events { worker_connections 64; }
http {
  access_log off;
  client_body_temp_path $dir/t1; proxy_temp_path $dir/t2; fastcgi_temp_path $dir/t3;
  uwsgi_temp_path $dir/t4; scgi_temp_path $dir/t5;
  proxy_read_timeout 120s;
  server {
    listen 127.0.0.1:$port;
    location / { proxy_pass http://$upstream; proxy_http_version 1.1; $settings }
  }
}
""",
    package="nginx",
    version="-v",
)
HAPROXY = Program(
    "HAProxy",
    "haproxy -db -f $config",
    """
global
    maxconn 64
defaults
    mode http
    timeout connect 5s
    timeout client 120s
    timeout server 120s
    $settings
frontend in
    bind 127.0.0.1:$port
    default_backend out
backend out
    server llm $upstream
""",
    package="haproxy",
    version="-v",
)
APACHE = Program(
    "Apache",
    "apache2 -D FOREGROUND -f $config",
    """
ServerRoot /usr/lib/apache2
LoadModule mpm_event_module modules/mod_mpm_event.so
LoadModule authz_core_module modules/mod_authz_core.so
LoadModule proxy_module modules/mod_proxy.so
LoadModule proxy_http_module modules/mod_proxy_http.so
${as_root} User www-data
ServerName localhost
Listen 127.0.0.1:$port
DefaultRuntimeDir $dir
PidFile $dir/pid
ErrorLog /dev/stderr
ProxyPass / http://$upstream/ $settings
""",
    package="apache2-bin",
    version="-v",
)
# Not its default of 60 s: llama.cpp closes what was idle for 5 s, and where a POST meets that close
# Varnish answers 503 (varnishcache/varnish-cache#3633).
VARNISH = Program(
    "Varnish",
    "varnishd -j none -F -n $dir/varnish -a 127.0.0.1:$port -f $config -p backend_idle_timeout=1",
    """
vcl 4.1;
backend default { .host = "127.0.0.1"; .port = "$upstream_port"; }
$settings
""",
    package="varnish",
    version="-V",
)
SQUID = Program(
    "Squid",
    "squid -N -f $config",
    """
http_port 127.0.0.1:$port accel defaultsite=127.0.0.1
cache_peer 127.0.0.1 parent $upstream_port 0 no-query originserver
http_access allow all
never_direct allow all
access_log none
cache_log /dev/null
pid_filename none
pinger_enable off
shutdown_lifetime 0 seconds
$settings
""",
    package="squid",
    version="-v",
)
LIGHTTPD = Program(
    "lighttpd",
    "lighttpd -D -f $config",
    """
server.modules = ("mod_proxy")
server.document-root = "$dir"
server.upload-dirs = ("$dir")
server.bind = "127.0.0.1"
server.port = $port
proxy.server = ("" => (("host" => "127.0.0.1", "port" => $upstream_port)))
$settings
""",
    package="lighttpd",
    version="-v",
)
H2O = Program(
    "h2o",
    "h2o -m worker -c $config",
    """
listen: {host: 127.0.0.1, port: $port}
hosts:
  default:
    paths:
      "/":
        proxy.reverse.url: http://$upstream/
$settings
""",
    package="h2o",
    version="-v",
)
ENVOY = Program(
    "Envoy",
    "envoy -c $config --disable-hot-restart --log-level warning",
    """
static_resources:
  listeners:
    - address: {socket_address: {address: 127.0.0.1, port_value: $port}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: llm
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes:
                        - match: {prefix: "/"}
                          route: {cluster: llm}
  clusters:
    - name: llm
      load_assignment:
        cluster_name: llm
        endpoints:
          - lb_endpoints:
              - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: $upstream_port}}}
""",
    venv="proxies",
)
TRAEFIK = Program(
    "Traefik",
    "traefik --entryPoints.web.address=127.0.0.1:$port --providers.file.filename=$config"
    " --global.checkNewVersion=false --global.sendAnonymousUsage=false",
    """
http:
  routers:
    all: {rule: "PathPrefix(`/`)", service: llm}
  services:
    llm:
      loadBalancer:
        servers: [{url: "http://$upstream"}]
""",
    venv="proxies",
    version="version",
)
CADDY = Program(
    "Caddy",
    "caddy run --adapter caddyfile --config $config",
    """
{
    admin off
    persist_config off
}
http://127.0.0.1:$port {
    bind 127.0.0.1
    reverse_proxy $upstream {
        $settings
    }
}
""",
    venv="proxies",
    version="version",
)
MITMPROXY = Program(
    "mitmproxy",
    "mitmdump --mode reverse:http://$upstream --listen-host 127.0.0.1 --listen-port $port"
    " --set confdir=$dir $settings",
    venv="mitmproxy",
)
FASTAPI = Program(
    "FastAPI + httpx",
    "python $gateways/with_fastapi.py $port http://$upstream $settings",
    venv="proxies",
    version="""-c 'from importlib.metadata import version as v; print("fastapi", v("fastapi"), "httpx", v("httpx"))'""",
)
AIOHTTP = Program(
    "aiohttp",
    "python $gateways/with_aiohttp.py $port http://$upstream $settings",
    venv="proxies",
    version="""-c 'import aiohttp; print("aiohttp", aiohttp.__version__)'""",
)
LITELLM = Program("LiteLLM", "litellm", venv="litellm")
