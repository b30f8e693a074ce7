"""`make demo` and `make down`: a node in a box, its service, an image, and a slice for logging in.

All files are below `.run/` and in the box. Each step first checks whether it is already done.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import nodebox_box
import nodebox_switch
from nodebox_linux import locked

HERE = Path(__file__).resolve().parent
REPO = HERE.parent
RUN = REPO / ".run"
VENV = REPO / ".venv"
CLONE = hashlib.sha256(str(REPO).encode()).hexdigest()[:6]  # boxes of two clones have different names
BOX = f"demo-{CLONE}"
RECIPE = "debian-12"
PORT = 8480
READY_SECONDS = 60

SETTINGS = """\
[node]
name = "{name}"
address = "{address}"

[web]
host = "{address}"
port = {port}
user = "65534:65534"
cookie = "plain"
"""


def say(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)


def run(*argv: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a program and capture its standard output; its standard error is shown at once."""
    return subprocess.run([str(word) for word in argv], check=check, text=True, stdout=subprocess.PIPE)


def nodebox(*words: str) -> str:
    return run(HERE / "nodebox", *words).stdout


def slicectl(*words: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    return run(VENV / "bin/slicectl", *words, check=check)


def ensure_image(name: str = RECIPE) -> Path:
    """The disk image of a recipe, built if it is missing or older than the recipe.

    A mirror during an update may lack a consistent index of security fixes: demo and tests then continue without them.
    """
    from slicemgr.builder import recipe

    image = RUN / f"{name}.qcow2"
    folders = recipe.load(recipe.directory(name)).folders
    newest = max(file.stat().st_mtime for folder in folders for file in folder.rglob("*") if file.is_file())
    with locked(RUN):
        if not image.exists() or image.stat().st_mtime < newest:
            say(f"building the VM disk image {image.name} (once)")
            words = (VENV / "bin/slicectl", "image", "build", name, "--output", image, "--cache", RUN / "kernels")
            if run(*words, check=False).returncode != 0:
                say("once more, without security fixes")
                run(*words, "--no-security")
    return image


def ensure_key() -> Path:
    key = RUN / "id_ed25519"
    if not key.exists():
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "slicemgr-demo", "-f", key)
    return key


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=10) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def box_address(box: str = BOX) -> str:
    return str(json.loads(nodebox("show", box, "-f", "json"))["address"])


def web_page(box: str = BOX) -> str:
    """The URL of the web page in a box."""
    return f"http://{box_address(box)}:{PORT}"


def ensure_box(box: str, name: str) -> dict[str, str]:
    """Create a box that runs `slicemgr up` for a node of this name. Returns the content of its client.json."""
    nodebox("make", box, "--link", "host")
    address, url = box_address(box), web_page(box)
    if not answers(url):
        say(f"starting web and agent in the box {box}")
        settings = SETTINGS.format(name=name, address=address, port=PORT)
        nodebox("enter", box, "--", "sh", "-c", f"cat > /etc/slicemgr/slicemgr.toml <<'E'\n{settings}E")
        nodebox("enter", "--background", "slicemgr", box, "--", str(VENV / "bin/slicemgr"), "up")
        deadline = time.monotonic() + READY_SECONDS
        while not answers(url):
            if time.monotonic() > deadline:
                sys.exit(f"demo: the service does not answer; see its log: tools/nodebox show {box}")
            time.sleep(0.1)
    client_settings: dict[str, str] = json.loads(nodebox("enter", box, "--", "cat", "/run/slicemgr/client.json"))
    return client_settings


def sign_in_link(box: str = BOX) -> str:
    """A link that signs the built-in admin of a box in to its web page, once."""
    return nodebox("enter", box, "--", str(VENV / "bin/slicemgr"), "sign-in-link").strip()


def write_client(target: Path, client_settings: dict[str, str]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.touch(mode=0o600)
    target.write_text(json.dumps(client_settings))


def ensure_service(key: Path) -> str:
    """Create the demo's box, and the settings of this clone's `slicectl`. Returns the URL of the service."""
    client_settings = ensure_box(BOX, "demo")
    write_client(VENV / "etc/slicemgr/client.json", {**client_settings, "identity": str(key)})
    await_node()
    return client_settings["url"]


def await_node() -> None:
    """Wait until the agent has announced the node of the box to the service."""
    while not json.loads(slicectl("node", "list", "-f", "json").stdout):
        time.sleep(0.1)


def ensure_imported(image: Path, name: str) -> None:
    listing = json.loads(slicectl("image", "list", "-f", "json").stdout)
    if not any(one["name"] == name and one["state"] == "ready" for one in listing):
        say(f"importing {image.name}")
        slicectl("image", "import", image, "--name", name)


def up() -> None:
    RUN.mkdir(mode=0o700, exist_ok=True)
    started = time.monotonic()
    image, key = ensure_image(), ensure_key()
    url = ensure_service(key)
    ensure_imported(image, RECIPE)
    if any(one["name"] == "demo" for one in json.loads(slicectl("list", "-f", "json").stdout)):
        say("deleting the slice of the last time")
        slicectl("delete", "demo")
    say("slicectl create demo --type lxc")
    slicectl("create", "demo", "--type", "lxc", "--image", RECIPE, "--ssh-key", f"{key}.pub")
    say("slicectl ssh demo")
    inside = slicectl(
        "ssh", "demo", "--", "id -un; hostname; . /etc/os-release; echo $PRETTY_NAME; grep MemTotal /proc/meminfo"
    ).stdout
    print(inside, end="")
    if inside.splitlines()[:1] != ["root"]:
        sys.exit("demo: the login did not end in a root shell")
    print(slicectl("show", "demo").stdout, end="")
    print(f"\nThe web page: {url}/\nSign in:      {sign_in_link()}")
    print("              (once, within an hour, as admin; `make demo` or `slicemgr sign-in-link` prints another link)")
    print(f"Log in:       {VENV}/bin/slicectl ssh demo")
    print(f"Measure:      {VENV}/bin/slicectl bench all --quick --node-exec '{HERE}/nodebox enter {BOX} --'")
    print(f"In all:       {time.monotonic() - started:.0f} s")


def down() -> None:
    """Destroy the boxes of this clone and delete the files of demo and tests, but not those of `tools/setup`."""
    for name in nodebox_box.names():  # also one of which a killed process left a part
        if name.endswith(f"-{CLONE}"):
            nodebox_box.Box(name).destroy()
    for name in nodebox_switch.names():
        if name.endswith(f"-{CLONE}"):
            nodebox_switch.Switch(name).destroy()
    if not nodebox("list").strip():
        shutil.rmtree("/var/cache/slicemgr", ignore_errors=True)  # the appliance of the importers of all boxes
    shutil.rmtree(RUN, ignore_errors=True)
    shutil.rmtree(VENV / "etc/slicemgr", ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["up", "down"])
    if os.geteuid() != 0:
        sys.exit("demo: must be root: it makes namespaces and a btrfs pool")
    match parser.parse_args().action:
        case "up":
            up()
        case "down":
            down()


if __name__ == "__main__":
    main()
