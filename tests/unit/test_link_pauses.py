"""How soon a link connects again."""

from __future__ import annotations

import ssl

from slicemgr.link import beats


def test_a_link_tries_often_while_no_broker_listens() -> None:
    refused = ConnectionRefusedError(111, "Connection refused")
    assert beats.longest_pause(refused) == beats.longest_pause(OSError(113, "No route to host")) == 5.0
    for other in (TimeoutError(110, "timed out"), ssl.SSLError(1, "broken"), ConnectionResetError(104, "reset")):
        assert beats.longest_pause(other) == 30.0
