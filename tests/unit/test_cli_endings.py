"""The end of slicectl after errors: exit statuses, messages, and forbidden effects."""

from __future__ import annotations

import gc
import json
import os
import pty
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from canned_service import HOST_KEY, Answer, Canned, Request, operation, problem, slice, sliver

from slicemgr import cli
from slicemgr.errors import Code

Run = Callable[..., tuple[int, str, str]]
SLICECTL = [sys.executable, "-c", "import sys; from slicemgr.cli import main; sys.exit(main())"]
CREATE = ("create", "exp", "--type", "lxc", "--image", "debian-12")


@pytest.fixture
def canned() -> Iterator[Canned]:
    with Canned() as service:
        yield service


@pytest.fixture
def environ(canned: Canned, tmp_path: Path) -> dict[str, str]:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/id_ed25519.pub").write_text(f"{HOST_KEY} me\n")
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {**kept, "HOME": str(home), "SLICEMGR_URL": canned.url, "SLICEMGR_TOKEN": "t"}


@pytest.fixture
def run(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """slicectl in this process: exit status, stdout, stderr."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    hook, threshold = sys.excepthook, gc.get_threshold()

    def run(*args: str) -> tuple[int, str, str]:
        status = cli.main(args)
        return status, *capsys.readouterr()

    yield run
    sys.excepthook = hook
    gc.set_threshold(*threshold)


def start(environ: dict[str, str], *args: str, **more: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*SLICECTL, *args], env=environ, text=True, stdout=more.get("stdout", -1), stderr=more.get("stderr", -1)
    )


@pytest.mark.parametrize("code", list(Code))
def test_each_code_has_its_exit_status(canned: Canned, run: Run, code: Code) -> None:
    canned.on("GET /slices", problem(code.status, code.wire, "it is so", hint="do that"))
    assert run("list") == (code.exit_status, "", "slicectl: it is so (do that)\n")


def test_a_message_cannot_steer_the_terminal(canned: Canned, run: Run) -> None:
    canned.on("GET /slices", problem(409, "conflict", "\x1b[2Jgone\nslicectl: forged"))
    assert run("list") == (4, "", "slicectl: \\x1b[2Jgone\\nslicectl: forged\n")


def test_a_name_cannot_steer_the_terminal(canned: Canned, run: Run) -> None:
    canned.on("GET /slices", {"slices": [slice("\x1b]0;owned\x07")]})
    status, out, _ = run("list")
    assert status == 0
    assert "\\x1b]0;owned\\x07" in out and "\x1b" not in out
    assert json.loads(run("list", "-f", "json")[1])[0]["name"] == "\x1b]0;owned\x07"


def test_what_is_asked_for_is_what_is_sent(canned: Canned, run: Run, tmp_path: Path) -> None:
    (tmp_path / "k.pub").write_text(f"{HOST_KEY} k\n")
    canned.on("POST /slices", {"plan": slice()})
    limits = "--cpu=0.5 --cpu-shares=512 --memory=256M --memory-soft=128M --disk=1G --pids=100 --io-weight=50"
    limits += " --net-in=100Mbit --net-out=800kbit"
    more = f"--count=3 --ports=5 --lease=2d --node=node1 --ssh-key={tmp_path}/k.pub --dry-run"
    status, out, _ = run(*CREATE, *f"{limits} {more}".split())
    assert status == 0 and "10000-10019" in out
    assert canned.requests[0].body == {
        "name": "exp",
        "type": "lxc",
        "image": "debian-12",
        "count": 3,
        "cpu": 0.5,
        "cpu_shares": 512,
        "memory": "256M",
        "memory_soft": "128M",
        "disk": "1G",
        "pids": 100,
        "io_weight": 50,
        "net_in": "100Mbit",
        "net_out": "800kbit",
        "ports": 5,
        "lease": "2d",
        "node": "node1",
        "ssh_keys": [f"{HOST_KEY} k\n"],
        "dry_run": True,
    }


def test_the_users_own_keys_are_the_default(canned: Canned, run: Run, environ: dict[str, str]) -> None:
    keys = Path(environ["HOME"], ".ssh")
    (keys / "id_rsa.pub").write_text("ssh-rsa AAAA me\n")
    canned.on("POST /slices", {"plan": slice()})
    assert run(*CREATE, "--dry-run")[0] == 0
    assert canned.requests[0].body["ssh_keys"] == [f"{HOST_KEY} me\n", "ssh-rsa AAAA me\n"]
    for key in keys.iterdir():
        key.unlink()
    canned.on("POST /slices", problem(422, "invalid", "is missing", field="ssh_keys"))
    status, _, err = run(*CREATE)
    assert status == 2 and "--ssh-key: there is no public key in ~/.ssh" in err and "ssh-keygen" in err
    assert "ssh_keys" not in canned.requests[1].body, "the service may know some"


def test_a_refusal_names_the_option_and_every_other_one(canned: Canned, run: Run) -> None:
    errors = [{"field": "memory_soft", "message": "too much"}, {"field": "ssh_keys", "message": "none"}]
    canned.on("POST /slices", problem(422, "invalid", "too much", field="memory_soft", errors=errors))
    assert run(*CREATE) == (2, "", "slicectl: --memory-soft: too much\nslicectl: --ssh-key: none\n")


@pytest.mark.parametrize("cores", ["nan", "inf", "-inf"])
def test_cores_are_a_number(canned: Canned, run: Run, cores: str) -> None:
    status, _, err = run(*CREATE, "--cpu", cores)
    assert status == 2 and err.startswith("slicectl: --cpu: ") and canned.requests == []


def test_create_waits_and_shows_how_to_log_in(canned: Canned, run: Run) -> None:
    canned.on("POST /slices", Answer(202, {"operation": operation("queued"), "slice": slice()}))
    canned.on("GET /operations/op1", operation(), operation("done", 2))
    canned.on("GET /slices/exp", slice())
    status, out, err = run(*CREATE)
    assert (status, err) == (0, "")
    assert "ssh -p 10000 root@127.0.0.1" in out
    assert json.loads(run(*CREATE, "-f", "json")[1]) == slice()


def test_create_that_fails_says_why(canned: Canned, run: Run) -> None:
    canned.on("POST /slices", Answer(202, {"operation": operation("queued"), "slice": slice()}))
    canned.on("GET /operations/op1", operation("failed", 2, error="the pool is full", hint="delete something"))
    assert run(*CREATE) == (1, "", "slicectl: the pool is full (delete something)\n")


def test_create_out_of_time_says_that_it_goes_on(canned: Canned, run: Run) -> None:
    canned.on("POST /slices", Answer(202, {"operation": operation("queued"), "slice": slice()}))
    canned.on("GET /operations/op1", operation())
    status, out, err = run(*CREATE, "--timeout", "0.05")
    assert (status, out) == (6, "")
    assert "continues" in err and "`slicectl op wait op1`" in err and "`slicectl delete exp`" in err


def test_interrupted_create_says_that_it_goes_on(canned: Canned, environ: dict[str, str]) -> None:
    canned.on("POST /slices", Answer(202, {"operation": operation("queued"), "slice": slice()}))
    with start(environ, *CREATE) as process:

        def interrupt(_: Request) -> Answer:
            process.send_signal(signal.SIGINT)
            return Answer(0)

        canned.on("GET /operations/op1", interrupt)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and out == ""
    assert "op1 continues" in err and "slicectl delete exp" in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("answers", "status"),
    [
        ({"a": None, "b": None}, 0),
        ({"a": 404, "b": 404}, 3),
        ({"a": 409, "b": 409}, 4),
        ({"a": 404, "b": 409}, 1),
        ({"a": 404, "b": None}, 1),
        ({"a": None, "b": "failed"}, 1),
        ({"a": "failed", "b": "failed"}, 1),
    ],
)
def test_bulk_goes_on_past_a_failure(
    canned: Canned, run: Run, answers: dict[str, int | str | None], status: int
) -> None:
    codes = {404: "not_found", 409: "conflict"}
    for name, answer in answers.items():
        if isinstance(answer, int):
            canned.on(f"POST /slices/{name}/stop", problem(answer, codes[answer], "cannot"))
        else:
            canned.on(f"POST /slices/{name}/stop", Answer(202, {"operation": operation(id=f"op-{name}")}))
            canned.on(f"GET /operations/op-{name}", operation(answer or "done", 2, error="broke" if answer else None))
    found, out, err = run("stop", *answers, "a")
    assert (found, out) == (status, "")
    assert [len(canned.asked(f"POST /slices/{name}/stop")) for name in answers] == [1, 1]
    bad = [name for name, answer in answers.items() if answer]
    assert [line.split(":")[1].strip() for line in err.splitlines()] == bad


def test_progress_is_drawn_on_a_terminal_only(canned: Canned, environ: dict[str, str]) -> None:
    canned.on("POST /slices/exp/stop", Answer(202, {"operation": operation()}))
    step = {"sliver": "", "name": "\x1b]0;owned\x07", "state": "running", "detail": "", "percent": 50}
    canned.on("GET /operations/op1", operation(steps=[step]), operation("done", 2))
    with start(environ, "stop", "exp") as quiet:
        assert quiet.communicate(timeout=60) == ("", "") and quiet.returncode == 0
    ours, theirs = pty.openpty()
    canned.on("GET /operations/op1", operation(steps=[step]), operation("done", 2))
    with start({**environ, "TERM": "xterm"}, "stop", "exp", stderr=theirs) as drawn:
        os.close(theirs)
        seen = b""
        try:
            while chunk := os.read(ours, 4096):
                seen += chunk
        except OSError:  # a terminal that no process holds open any more
            pass
        assert drawn.communicate(timeout=60)[0] == "" and drawn.returncode == 0
    os.close(ours)
    assert b"create exp" in seen and b"\x1b]0;" not in seen


def test_a_reader_that_leaves_is_no_complaint(canned: Canned, environ: dict[str, str]) -> None:
    canned.on("GET /slices", {"slices": [slice(f"s{number}" * 50) for number in range(2000)]})
    for format in ("table", "json"):
        ours, theirs = os.pipe()
        os.close(ours)
        with start(environ, "list", "-f", format, stdout=theirs) as process:
            os.close(theirs)
            assert process.communicate(timeout=60)[1] == ""
        assert process.returncode == 1


def test_a_full_disk_is_one_line(canned: Canned, environ: dict[str, str]) -> None:
    canned.on("GET /slices", {"slices": [slice()]})
    with Path("/dev/full").open("w") as full, start(environ, "list", stdout=full.fileno()) as process:
        err = process.communicate(timeout=60)[1]
    assert process.returncode != 0
    assert err == "slicectl: [Errno 28] No space left on device\n"


def test_what_nobody_foresaw_is_one_line(canned: Canned, environ: dict[str, str]) -> None:
    canned.on("GET /slices", {"slices": [{"name": "half a slice"}]})
    with start(environ, "list") as process:
        err = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert err.startswith("slicectl: internal error: KeyError: ") and err.count("\n") == 1
    with start({**environ, "SLICECTL_TRACEBACK": "1"}, "list") as process:
        assert "Traceback" in process.communicate(timeout=60)[1]


def test_doctor_fails_with_a_check(canned: Canned, run: Run) -> None:
    checks = [
        {"name": "libvirt", "ok": True, "detail": "9.0", "remedy": ""},
        {"name": "btrfs", "ok": False, "detail": "no pool", "remedy": "mkfs.btrfs"},
        {"name": "kvm", "ok": None, "detail": "", "remedy": ""},
    ]
    right = {"says": "2030-01-01 12:00 UTC", "leases_go_by": "2030-01-01 12:00 UTC", "doubt": None, "held": 0}
    canned.on("GET /clock", right)
    canned.on("GET /nodes", {"nodes": [{"name": "node1"}]})
    canned.on("POST /nodes/node1/doctor", Answer(202, {"operation": operation(kind="doctor")}))
    canned.on("GET /operations/op1", operation("done", 2, result={"checks": checks}))
    status, out, _ = run("doctor", "--no-header")
    assert status == 1
    assert [line.split()[:2] for line in out.splitlines() if line.strip("- ")] == [
        ["libvirt", "ok"],
        ["btrfs", "FAIL"],
        ["kvm", "?"],
        ["clock", "ok"],
    ]
    assert "mkfs.btrfs" in out
    canned.on("GET /clock", {**right, "doubt": "it is 3 d ahead", "held": 2})
    out = run("doctor", "--no-header")[1]
    assert "it is 3 d ahead; leases on hold: 2" in out and "slicectl clock confirm" in out
    canned.on("GET /operations/op1", operation("done", 2, result={"checks": [checks[0], checks[2]]}))
    assert run("doctor")[0] == 0


def test_doctor_without_a_service_says_what_does(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLICEMGR_URL", "http://127.0.0.1:1")
    status, _, err = run("doctor")
    assert status == 7 and "`slicemgr doctor`" in err


@pytest.mark.parametrize(("flag", "removed", "status"), [((), False, 0), (("--yes",), True, 0), (("--yes",), False, 1)])
def test_gc_removes_only_when_told(canned: Canned, run: Run, flag: tuple[str, ...], removed: bool, status: int) -> None:
    item = {"what": "link", "name": "smabcdefgh-0", "detail": "", "removed": removed}
    canned.on("POST /nodes/node1/gc", Answer(202, {"operation": operation(kind="gc")}))
    canned.on("GET /operations/op1", operation("done", 2, result={"items": [item]}))
    found, out, _ = run("gc", "--node", "node1", *flag)
    assert found == status and "smabcdefgh-0" in out
    assert canned.asked("POST /nodes/node1/gc")[0].body == {"apply": bool(flag)}


def test_wait_for_each_goal(canned: Canned, run: Run) -> None:
    canned.on("GET /slices/exp", slice(state="stopping"), slice(state="stopped"))
    assert run("wait", "exp", "--for", "stopped")[0] == 0
    canned.on("GET /slices/exp", problem(404, "not_found"))
    assert run("wait", "exp", "--for", "gone")[0] == 0
    assert run("wait", "exp", "--for", "running")[0] == 3
    canned.on("GET /slices/exp", slice(state="failed", slivers=[sliver(error="no space")]))
    status, _, err = run("wait", "exp", "--for", "running")
    assert status == 1 and "no space" in err
    canned.on("GET /slices/exp", slice(state="stopped"))
    assert run("wait", "exp", "--for", "running", "--timeout", "0.01")[0] == 6


def test_wait_for_ssh_hears_a_greeting(canned: Canned, run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ssh = {"host": "127.0.0.1", "port": port, "fingerprint": None, "host_key": None}
        keys = iter([None])  # at first its key is not recorded yet: it is not connected to then

        def greet(_: Request) -> Answer:
            return Answer(200, slice(slivers=[sliver(ssh={**ssh, "host_key": next(keys, HOST_KEY)})]))

        canned.on("GET /slices/exp", greet)
        with start({**os.environ, "SLICEMGR_URL": canned.url, "SLICEMGR_TOKEN": "t"}, "wait", "exp") as waiting:
            for greeting in (b"220 smtp\r\n", b"SSH-2.0-x\r\n"):
                line, _ = server.accept()
                line.sendall(greeting)
                line.close()
            waiting.communicate(timeout=60)
        assert waiting.returncode == 0


def test_a_list_of_nothing_is_quick(canned: Canned, environ: dict[str, str]) -> None:
    """At most twice the CPU time of the interpreter with the modules of any client; the best of many runs."""
    canned.on("GET /slices", {"slices": []})
    bare = [sys.executable, "-c", "import json, http.client"]
    best = {"bare": float("inf"), "list": float("inf")}

    def used() -> float:
        """Seconds of processor time of the programs that have ended."""
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    for turn in range(60):
        for name, words in (("bare", bare), ("list", [*SLICECTL, "list"])):
            begin = used()
            subprocess.run(words, env=environ, stdout=subprocess.DEVNULL, check=True, timeout=60)
            best[name] = min(best[name], used() - begin)
        if best["list"] <= 2 * best["bare"] and turn >= 5:
            break
    assert best["list"] <= 2 * best["bare"], best


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(run: Run, shell: str) -> None:
    status, out, err = run("completion", shell)
    assert (status, err) == (0, "")
    assert "_SLICECTL_COMPLETE" in out


def test_completion_knows_the_slices(canned: Canned, environ: dict[str, str]) -> None:
    canned.on("GET /slices", {"slices": [slice("exp"), slice("other")]})
    asked = {"_SLICECTL_COMPLETE": "bash_complete", "COMP_WORDS": "slicectl show e", "COMP_CWORD": "2"}
    with start({**environ, **asked}, "show") as process:
        assert process.communicate(timeout=60) == ("plain,exp\n", "")
    with start({**environ, **asked, "SLICEMGR_URL": "http://127.0.0.1:1"}, "show") as process:
        assert process.communicate(timeout=60) == ("\n", "")


def test_version_and_help(run: Run) -> None:
    version = run("version")[1].strip()
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", version)
    assert run("--version")[1] == f"slicectl {version}\n"
    for words in ((), ("image",), ("op",)):
        status, out, err = run(*words)
        assert status == 2 and out == "" and err.startswith("Usage: slicectl")
        assert run(*words, "--help")[0] == 0


def test_an_account_is_created_with_the_link_of_an_invitation(
    canned: Canned, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canned.on("POST /invitation", {"user": "nia"})
    words = ("user", "accept", f"{canned.url}/invitation/secret", "--password-stdin")
    for more, sent in (
        (("--name", "nia", "--full-name", "Nia"), {"name": "nia", "full_name": "Nia"}),
        (("--name", "nia"), {"name": "nia"}),
        ((), {}),
    ):
        (tmp_path / "stdin").write_text("a quite different sentence\n")
        with (tmp_path / "stdin").open() as opened:
            monkeypatch.setattr(sys, "stdin", opened)
            status, out, _ = run(*words, *more)
        assert status == 0 and out.startswith("nia can now sign in")
        assert canned.requests[-1].body == {"token": "secret", "password": "a quite different sentence", **sent}
    status, _, err = run(*words, "--full-name", "Nia")
    assert status == 2 and "give --name" in err
