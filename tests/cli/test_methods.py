"""`acclimate methods`: the list, and the card of one method."""

from __future__ import annotations

import acclimate
from tests.cli.test_cli import run
from tests.codes import raises


def test_methods_lists_every_method_with_its_sentence() -> None:
    text = run("methods").output
    for name in acclimate.list_methods():
        kind = acclimate.get_method(name)
        assert name in text
        assert (kind.__doc__ or "").splitlines()[0] in text
    assert "moves all parameters · needs penalty and prototypes · 2 forwards, 2 backwards" in text
    assert "[oracle]" in text
    assert "[reconstruction]" in text


def test_methods_show_has_links_and_every_hyper_parameter() -> None:
    text = run("methods", "show", "swr_nsp").output
    assert "https://arxiv.org/abs/2207.11707" in text
    for name, value in acclimate.get_method("swr_nsp").config_class().to_dict().items():
        line = next(line for line in text.splitlines() if line.startswith(f" {name} "))
        assert f"{value:g}" in line if isinstance(value, float) else str(value) in line
    assert "1e-05 … 0.01 (log)" in text
    with raises("unknown_method", name="swr-nps"):
        run("methods", "show", "swr-nps")
