"""The published numbers are complete, and agree with each other."""

from __future__ import annotations

import math
import statistics

import pytest

from acclimate.corruptions import BENCHMARK
from acclimate.paper import EXPERIMENTS, load_published
from acclimate.paper.published import read_toml

TABLES = load_published()
CONTENT = read_toml("published.toml")
BY_CORRUPTION = ("table-1a", "table-1b", "table-s6a")
# Where the printed mean is not that of the printed numbers; a note of the table must say so.
MISPRINTS = {("table-1b", "CIFAR-10-C, WRN-28-10", "Source")}
OURS_ON = {
    "CIFAR-100-C, WRN-40-2": 32.71,
    "CIFAR-100-C, ResNet-50": 35.65,
    "CIFAR-10-C, WRN-40-2": 10.37,
    "CIFAR-10-C, WRN-28-10": 15.70,
    "CIFAR-10-C, ResNet-50": 12.52,
}


def test_every_table_and_figure_with_results_is_there() -> None:
    tables = [f"table-{n}" for n in ("1a", "1b", "1c", "2", "3", "4a", "4b", "4c", "5", "6")]
    tables += [f"table-s{n}" for n in ("1", "2", "3", "4", "5", "6a", "6b", "7", "8")]
    figures = ["fig-1", "fig-6", "fig-s1", "fig-s2", "fig-s3"]
    assert set(TABLES) == {*tables, *figures, "text-fixmatch"} == set(EXPERIMENTS)


def test_counts_of_numbers() -> None:
    counts = {
        name: sum(v is not None for own in table.rows.values() for r in own.values() for v in r)
        for name, table in TABLES.items()
    }
    assert counts["table-1a"] == 10 * 16
    assert counts["table-1b"] == 13 * 16
    assert counts["table-s6a"] == 6 * 16
    assert counts["table-s6b"] == 4 * 6
    assert counts["table-1c"] == 4 * 5
    assert (counts["table-2"], counts["table-3"], counts["table-s1"]) == (6, 20, 11)
    assert counts["table-6"] == 8 * 5
    assert (counts["table-s2"], counts["table-s4"]) == (30, 15)
    assert counts["fig-1"] == counts["fig-6"] == counts["fig-s1"] == counts["fig-s3"] == 0
    assert counts["fig-s2"] == 6  # (a) and (b), which other tables have


@pytest.mark.parametrize("name", BY_CORRUPTION)
def test_printed_means_are_those_of_the_rows(name: str) -> None:
    table = TABLES[name]
    assert table.columns == ("mean", *BENCHMARK)
    for setting, own in table.rows.items():
        for label, (mean, *values) in own.items():
            # Numbers with one decimal, their mean with two: so far can rounding alone take it.
            agrees = math.isclose(statistics.fmean(values), mean, abs_tol=0.05 + 0.005)
            assert agrees == ((name, setting, label) not in MISPRINTS), (setting, label)


def test_the_misprint_is_carried_with_a_note() -> None:
    table = TABLES["table-1b"]
    printed = table.get("CIFAR-10-C, WRN-28-10", "Source", "defocus_blur")
    assert printed == 49.9
    (note,) = [note for note in table.notes if "Misprint" in note]
    assert "46.9" in note
    mean, *values = table.rows["CIFAR-10-C, WRN-28-10"]["Source"]
    values[3] = 46.9
    assert round(statistics.fmean(values), 2) == mean == 43.51


def test_means_over_severities_and_data_sets() -> None:
    for own in TABLES["table-s6b"].rows.values():
        for mean, *values in own.values():
            assert math.isclose(statistics.fmean(values), mean, abs_tol=0.0051)
    for own in TABLES["table-6"].rows.values():
        for *values, mean in own.values():
            assert math.isclose(statistics.fmean(values), mean, abs_tol=0.0501)


@pytest.mark.parametrize("name", ["table-1c", "table-s6b", "table-s7"])
def test_printed_gains_are_the_differences_of_the_rows(name: str) -> None:
    table, printed = TABLES[name], CONTENT[name]["gains"]
    assert printed.keys() == table.rows.keys()
    for setting, gains in printed.items():
        first, last = table.rows[setting].values()
        for gain, before, after in zip(gains, first, last, strict=True):
            assert gain == pytest.approx(before - after, abs=1e-9)


def test_numbers_of_the_text_are_the_differences_of_the_cells() -> None:
    statements = CONTENT["text"]
    assert len(statements) == 7
    for statement in statements:
        assert {"place", "says", "value"} <= statement.keys()
        if "from" not in statement:
            continue
        name, setting, *cells = statement["from"]
        first, second = (TABLES[name].rows[setting][own][0] for own in cells)
        assert statement["value"] == pytest.approx(first - second, abs=1e-9), statement["says"]


def test_the_method_itself_has_one_error_in_all_tables() -> None:
    same = {
        "table-3": {name: ("2" if "100" in name else "none") for name in OURS_ON},
        "table-4a": {"CIFAR-100-C, ResNet-50": "512"},
        "table-4b": {"CIFAR-100-C, ResNet-50": "+ crop and blur"},
        "table-4c": {name: "frozen" for name in OURS_ON if "100" in name},
        "table-s2": dict.fromkeys(OURS_ON, "+ blur"),
        "table-s3": dict.fromkeys(OURS_ON, "main"),
        "table-s4": {name: ("z" if "100" in name else "h") for name in OURS_ON},
        "table-s5": dict.fromkeys(OURS_ON, "updated"),
    }
    for name, columns in same.items():
        for setting, column in columns.items():
            assert TABLES[name].get(setting, "Ours", column) == OURS_ON[setting], (name, setting)
    for name in ("table-1a", "table-1b"):
        for setting, own in TABLES[name].rows.items():
            assert own["Ours"][0] == OURS_ON[setting]
    for setting, own in TABLES["fig-s2"].rows.items():
        a, b = own["Ours"][:2]
        assert a == OURS_ON[setting]
        assert b == TABLES["table-s2"].get(setting, "Ours", "+ crop")


def test_every_table_says_where_it_stands() -> None:
    for table in TABLES.values():
        assert table.place.startswith(("Table ", "Figure ", "supplement ")), table.id
        assert table.title
        assert CONTENT[table.id]["tex"]
    assert TABLES["table-s4"].place.startswith("Table 10,")
    assert TABLES["fig-s3"].place.startswith("Figure 9,")


def test_what_the_text_lacks_is_no_number() -> None:
    table = TABLES["fig-s2"]
    assert table.get("CIFAR-100-C, ResNet-50", "Ours", "c") is None
    assert table.get("CIFAR-100-C, ResNet-50", "Ours", "z") is None
    assert table.get("nowhere", "Ours", "a") is None
    assert not TABLES["fig-1"].has_numbers
    assert table.has_numbers


@pytest.mark.parametrize("name", list(TABLES))
def test_the_file_is_complete(name: str) -> None:
    needed = {"title", "place", "tex", "unit", "columns", "rows"}
    assert needed <= CONTENT[name].keys() <= {*needed, "spread", "gains", "notes"}
    columns = TABLES[name].columns
    assert len(set(columns)) == len(columns)
    for kind in ("rows", "spread"):
        for own in CONTENT[name].get(kind, {}).values():
            for values in own.values():
                assert len(values) == len(columns)
                assert all(math.isnan(value) or 0 <= value <= 100 for value in values)


def test_settings_are_numbers() -> None:
    settings = CONTENT["settings"]
    assert settings["strength"] == 250.0
    assert settings["resnet50_units"] == 161
