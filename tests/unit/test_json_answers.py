"""JSON of responses: orjson writes it, and it means what Flask's encoder would write."""

from __future__ import annotations

import decimal
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from flask import Flask, jsonify

from slicemgr.web.json_answers import JsonAnswers

VALUES: list[Any] = [
    {"z": 1, "a": [1.0, -0.5, None, True], "text": 'é"\\\n\x00\N{SNOWMAN}'},
    {
        "time": datetime(2026, 1, 31, 12, 0, 5, tzinfo=UTC),
        "sum": decimal.Decimal("10"),
        "many": 1 << 80,
        "half": "\ud800",
        1: "number as a name",
    },
]


@pytest.mark.parametrize("value", VALUES, ids=["usual", "others"])
def test_answers_mean_what_flask_writes(value: dict[Any, Any]) -> None:
    ours, flask = Flask("ours"), Flask("flask")
    ours.json = JsonAnswers(ours)
    flask.json.sort_keys = False  # type: ignore[attr-defined]
    answers = []
    for app in (ours, flask):
        with app.app_context():
            response = jsonify(value)
        assert response.mimetype == "application/json"
        answers.append(json.loads(response.get_data(as_text=True), object_pairs_hook=list))
    assert answers[0] == answers[1]


def test_long_answers_are_not_written_by_flask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the encoder that takes several times as long would not be noticed."""
    app = Flask("ours")
    app.json = JsonAnswers(app)
    monkeypatch.setattr(app.json, "dumps", None)
    with app.app_context():
        assert jsonify({"slices": [VALUES[0]]}).get_json() == {"slices": [VALUES[0]]}
        with pytest.raises(TypeError):
            jsonify(VALUES[1])
