"""Output for users and programs: readable sizes and times, harmless text, tables that fit, exact data."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime

import pytest
import yaml
from canned_service import Json, slice, sliver

from slicemgr.cli.render import human, tables
from slicemgr.cli.render.output import Column, Output, Table, as_csv, as_table, display_width, field

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
EVIL = "a\x1b[2J\x07\r\n\x9b31m\u202eb\x7f\ud800"
COLUMNS = (field("name", whole=True), field("size", human.size), field("detail"))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (512 << 20, "512 MiB"),
        (4 << 30, "4 GiB"),
        (5000 << 40, "5000 TiB"),
        (None, "-"),
    ],
)
def test_sizes(value: int | None, said: str) -> None:
    assert human.size(value) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (64000, "64 kbit/s"),
        (1_500_000, "1.5 Mbit/s"),
        (10**8, "100 Mbit/s"),
        (19_600_000_000, "19.6 Gbit/s"),
        (999, "999 bit/s"),
        (None, "-"),
    ],
)
def test_rates(value: int | None, said: str) -> None:
    assert human.rate(value) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("2026-01-09T03:04:04Z", "in 7 days"),  # a lease of a week that has just begun
        ("2026-01-09T03:04:05Z", "in 7 days"),
        ("2026-01-08T12:04:05Z", "in 6 days"),
        ("2026-01-04T02:44:05Z", "in 2 days"),
        ("2026-01-04T02:24:05Z", "in 47 hours"),
        ("2026-01-02T04:03:45Z", "in 1 hour"),
        ("2026-01-03T03:04:05Z", "in 24 hours"),
        ("2026-01-02T03:01:05Z", "3 minutes ago"),
        ("2026-01-02T03:04:04Z", "1 second ago"),
        ("2026-01-02T03:04:05Z", "now"),
        ("2126-01-02T03:04:05Z", "in 100 years"),
        ("2026-01-02T04:04:05+02:00", "1 hour ago"),
        ("soon\x1b", "soon\\x1b"),
        (None, "-"),
    ],
)
def test_times(value: str | None, said: str) -> None:
    assert human.when(value, NOW) == said


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 seconds"),
        (1, "1 second"),
        (95, "95 seconds"),
        (5400, "90 minutes"),
        (7000, "2 hours"),
        (86400, "1 day"),
        (129600, "36 hours"),
        (604800, "7 days"),
        (365 * 86400, "365 days"),
        (730 * 86400, "2 years"),
        (3599.7, "1 hour"),
        (0.4, "0 seconds"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    """A limit that a user typed is shown as typed."""
    assert human.span(seconds) == words


def test_text_cannot_steer_a_terminal() -> None:
    assert human.printable(EVIL) == "a\\x1b[2J\\x07\\r\\n\\x9b31m\\u202eb\\x7f\\ud800"
    assert human.printable("Zürich → 東京") == "Zürich → 東京"
    assert human.printable("a\nb", keep="\n") == "a\nb"
    for show in (human.text, human.number, human.when, human.size, human.rate, human.check):
        assert all(one.isprintable() for one in show(EVIL))


def test_every_column_of_every_table_is_harmless() -> None:
    evil_sliver = sliver(state=EVIL, address=EVIL, error=EVIL, id=EVIL, node=EVIL)
    evil_sliver["ssh"] = {"host": EVIL, "port": 1, "fingerprint": EVIL}
    rows = {"SLICES": slice(EVIL, state=EVIL, image=EVIL, expires_at=EVIL), "SLIVERS": evil_sliver}
    for name, row in rows.items():
        table: Table = getattr(tables, name)
        for format in ("table", "compact"):
            printed = as_table(table.columns, [row], header=True, rule=format == "table")
            assert printed.replace("\n", "").isprintable()


def test_a_table_is_as_wide_as_it_must_when_nobody_looks() -> None:
    rows = [{"name": "n" * 50, "size": 1024, "detail": "d" * 500}]
    lines = as_table(COLUMNS, rows, header=True, rule=True).splitlines()
    assert lines[0] == f"{'NAME':50}  SIZE   DETAIL"
    assert set(lines[1]) == {"-", " "} and len(lines[1]) == 50 + 2 + 5 + 2 + 500
    assert lines[2] == f"{'n' * 50}  1 KiB  {'d' * 500}"


def test_a_table_fits_the_terminal_but_a_name_stays_whole() -> None:
    rows = [{"name": "n" * 50, "size": 1024, "detail": "d" * 500}]
    line = as_table(COLUMNS, rows, header=False, rule=True, width=80).rstrip("\n")
    assert len(line) == 80
    assert line.startswith("n" * 50 + "  1 KiB  ddd") and line.endswith("d…")
    narrow = as_table(COLUMNS, rows, header=False, rule=True, width=20).rstrip("\n")
    assert narrow.startswith("n" * 50) and narrow.endswith("ddddddd…")


def test_wide_characters_keep_columns_aligned() -> None:
    rows = [{"name": "東京", "size": 1, "detail": "x"}, {"name": "e\u0301", "size": 1, "detail": "x"}]
    lines = as_table(COLUMNS, rows, header=False, rule=False).splitlines()
    assert {display_width(one) for one in lines} == {display_width(lines[0])}
    cut = as_table((field("detail"),), [{"detail": "東" * 20}], header=False, rule=False, width=11).rstrip("\n")
    assert display_width(cut) <= 11 and cut.endswith("…")


def test_no_rows() -> None:
    assert as_table(COLUMNS, [], header=True, rule=False) == "NAME  SIZE  DETAIL\n"
    assert as_table(COLUMNS, [], header=False, rule=False) == ""


def test_the_node_is_printed_if_there_are_several(capsys: pytest.CaptureFixture[str]) -> None:
    for nodes, printed in ((("n1", "n1"), False), (("n1", "n2"), True)):
        Output(tables.SLIVERS, "table", None, True).show([{**sliver(), "node": node} for node in nodes])
        assert ("NODE" in capsys.readouterr().out.splitlines()[0].split()) is printed


def test_csv_is_exact() -> None:
    columns = [*COLUMNS, Column("flag", lambda row: row["flag"])]
    rows = [{"name": 'a,"b"', "size": 4 << 30, "detail": f"two\nlines{EVIL}", "flag": True}]
    rows += [{"name": "n", "size": None, "detail": "", "flag": {"a": 1}}]
    printed = as_csv(columns, rows, header=True)
    assert "\x1b" not in printed and "\x9b" not in printed
    first, second = csv.DictReader(io.StringIO(printed))
    assert (first["name"], first["size"], first["flag"]) == ('a,"b"', str(4 << 30), "true")
    assert first["detail"].startswith("two\nlinesa\\x1b")
    assert (second["size"], second["detail"], second["flag"]) == ("", "", '{"a": 1}')
    assert as_csv(columns, rows, header=False) == printed.split("\n", 1)[1]


@pytest.mark.parametrize(("format", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_data_is_the_services_own(format: str, load: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(load)
    whole = slice(state="run\x1bning")
    Output(tables.SLIVERS, format, None, True).show(whole["slivers"], whole)
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert load(printed) == whole


def test_chosen_columns_of_data_are_objects(capsys: pytest.CaptureFixture[str]) -> None:
    whole = slice()
    Output(tables.SLIVERS, "json", ("ssh", "memory"), True).show(whole["slivers"], whole)
    assert json.loads(capsys.readouterr().out) == [{"ssh": "ssh -p 10000 root@127.0.0.1", "memory": 512 << 20}]


def test_a_field_that_is_missing_is_empty() -> None:
    column = field("facts.kernel")
    rows: list[Json] = [{}, {"facts": None}, {"facts": {}}, {"facts": {"kernel": 6}}]
    assert column.name == "kernel"
    assert [column.get(row) for row in rows] == [None, None, None, 6]
