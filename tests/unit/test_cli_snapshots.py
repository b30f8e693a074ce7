"""slicectl snapshot, against the application behind a real socket; there is no agent, so it does not wait."""

from __future__ import annotations

import json

from test_cli_people import Run, run, tenants, url

__all__ = ["run", "tenants", "url"]  # fixtures


def test_snapshots_from_the_command_line(run: Run) -> None:
    status, out, _ = run("bob", "snapshot", "list", "exp", "-f", "json")
    (before,) = json.loads(out)
    assert (status, before["name"], before["state"], before["size"]) == (0, "before", "ready", 5)
    status, out, _ = run("bob", "snapshot", "list", "exp")
    assert "before" in out and "ready" in out and "SIZE" in out.upper()
    assert run("dave", "snapshot", "list", "exp")[0] == 0, "a member looks"
    for words in (("create", "exp", "x"), ("restore", "exp", "before"), ("delete", "exp", "before")):
        assert run("dave", "snapshot", *words, "--no-wait")[0] == 5
        assert run("carol", "snapshot", *words, "--project", "lab", "--no-wait")[0] == 3
    status, out, _ = run(
        "bob", "snapshot", "clone", "exp", "before", "twin", "--lease", "2d", "--no-wait", "-f", "json"
    )
    assert status == 0 and json.loads(out)["name"] == "twin"
    status, _, err = run("bob", "snapshot", "delete", "exp", "before", "--no-wait")
    assert status == 4 and "twin" in err
    assert run("bob", "snapshot", "restore", "exp", "before", "--no-wait")[0] == 0
    status, _, err = run("bob", "snapshot", "create", "exp", "after", "--no-wait")
    assert status == 4 and "is being restored" in err
    status, _, err = run("bob", "snapshot", "clone", "exp", "gone", "more")
    assert status == 3 and "slicectl snapshot list exp" in err
    status, _, err = run("bob", "snapshot", "create", "exp", "Not-A-Name")
    assert status == 2 and "lower-case" in err
