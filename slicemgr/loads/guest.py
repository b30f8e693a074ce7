"""Measure how fast a program works on the kernel of a guest, over the loopback, and print the result.

    guest.py python|redis|nginx SECONDS

`python` passes messages between two tasks of Python over TCP. `redis` and `nginx` start that server and ask it by its
own load generator, redis-benchmark or wrk. It works in the current directory.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

REDIS_PORT, NGINX_PORT = 16379, 18080
_CLIENTS = 8
_UP = 60.0  # seconds in which a server must answer
_END = 600.0  # seconds beyond the duration in which a load generator must end
_NGINX = """user root;
worker_processes 1;
daemon off;
pid {here}/nginx.pid;
error_log stderr;
events {{ worker_connections 256; }}
http {{
    access_log off;
    {temporary}
    server {{
        listen 127.0.0.1:{port};
        root {here};
    }}
}}
"""
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
Found = dict[str, object]


async def _echoes(seconds: float) -> float:
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()
        writer.close()
        await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    began, count = time.monotonic(), 0
    while time.monotonic() < began + seconds:
        writer.write(b"a message of some bytes\n")
        await reader.readline()
        count += 1
    took = time.monotonic() - began
    writer.close()
    await writer.wait_closed()
    await ended.wait()
    server.close()
    return count / took


def redis_rates(said: str) -> list[float]:
    """The rates of redis-benchmark's lines of CSV, in requests per second. Raises ValueError without one."""
    found = [float(match[1]) for match in re.finditer(r'^"[A-Z]+","([0-9.]+)"', said, re.MULTILINE)]
    if not found:
        raise ValueError("redis-benchmark printed no rate")
    return found


def wrk_rate(said: str) -> float:
    """The rate that wrk has measured, in requests per second. Raises ValueError without one, or after errors."""
    match = re.search(r"^Requests/sec:\s+([0-9.]+)", said, re.MULTILINE)
    if match is None or "Non-2xx" in said:
        raise ValueError("wrk measured no rate")
    return float(match[1])


def _listens(port: int, server: subprocess.Popen[bytes]) -> None:
    """Wait for the server: redis-benchmark never ends if it is refused."""
    end = time.monotonic() + _UP
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 5.0).close()
        except OSError:
            if server.poll() is not None or time.monotonic() > end:
                raise ValueError("the server does not answer") from None
            time.sleep(0.05)
        else:
            return


def _redis(seconds: float) -> float:
    words = ["redis-server", "--port", str(REDIS_PORT), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    ask = ["redis-benchmark", "-p", str(REDIS_PORT), "-c", str(_CLIENTS), "-t", "get,set", "--csv"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as server:
        try:
            _listens(REDIS_PORT, server)
            rate = min(redis_rates(_said([*ask, "-n", "500"])))
            each = max(500, round(rate * seconds / 2))  # of both commands
            return sum(redis_rates(_said([*ask, "-n", str(each)]))) / 2
        finally:
            server.kill()


def _nginx(seconds: float) -> float:
    here = Path.cwd()
    (here / "page").write_bytes(b"x" * 612)  # the size of nginx's own first page
    temporary = " ".join(f"{name}_temp_path {here}/{name};" for name in _TEMPORARY)
    configuration = here / "nginx.conf"
    configuration.write_text(_NGINX.format(here=here, port=NGINX_PORT, temporary=temporary))
    ask = ["wrk", "-t", "1", "-c", str(_CLIENTS), f"http://127.0.0.1:{NGINX_PORT}/page"]
    with subprocess.Popen(["nginx", "-e", "stderr", "-p", str(here), "-c", str(configuration)]) as server:
        try:
            _listens(NGINX_PORT, server)
            return wrk_rate(_said([*ask, "-d", f"{max(1, round(seconds))}s"]))
        finally:
            server.terminate()


def _said(words: list[str]) -> str:
    return subprocess.run(words, capture_output=True, check=True, timeout=_END, text=True).stdout


NEEDS = {"python": (), "redis": ("redis-server", "redis-benchmark"), "nginx": ("nginx", "wrk")}


def run(load: str, seconds: float) -> Found:
    """Run a load; its `rate` per second, or `missing` or `failed`."""
    for program in NEEDS[load]:
        if shutil.which(program) is None:
            return {"missing": f"there is no {program}"}
    try:
        match load:
            case "python":
                return {"rate": asyncio.run(_echoes(seconds))}
            case "redis":
                return {"rate": _redis(seconds)}
            case _:
                return {"rate": _nginx(seconds)}
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return {"failed": f"{load}: {error}"}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(sys.argv[1], float(sys.argv[2]))) + "\n")
