"""What is drawn: closed forms of maps, perturbations and charts, and text that is never cut."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from robvit.drawing import style
from robvit.drawing.charts import draw_charts, svg_chart
from robvit.drawing.grid import Grid, Row, Tile, draw_grid, tiled
from robvit.drawing.images import coloured_mask, heat, mask_over, pixels, save_png, signed
from robvit.drawing.perturbation import amplification, amplified, grey_perturbation, rescaled_perturbation
from robvit.drawing.sheet import Pair, attack_sheet, beside, sheet
from robvit.drawing.surfaces import Surface, draw_surfaces
from robvit.errors import InputError
from robvit.record import Curve


def test_a_perturbation_fills_the_range_of_grey_exactly() -> None:
    x = torch.full((2, 3, 2, 2), 0.5)
    adv = x.clone()
    adv[0, :, 0, 0] += 0.1
    adv[0, :, 1, 1] -= 0.05
    grey = grey_perturbation(x, adv)
    assert grey.shape == (2, 1, 2, 2)
    expected = torch.tensor([[1.0, 0.5], [0.5, 0.25]])
    torch.testing.assert_close(grey[0, 0], expected)
    torch.testing.assert_close(grey[1, 0], torch.full((2, 2), 0.5))  # nothing changed
    torch.testing.assert_close(grey_perturbation(x, adv, eps=0.2)[0, 0, 0, 0], torch.tensor(0.75))
    red = x.clone()
    red[:, 0] += 0.1
    torch.testing.assert_close(grey_perturbation(x, red), torch.full((2, 1, 2, 2), 0.5 + 0.299 / 2))
    colours = rescaled_perturbation(x, red)
    assert colours[:, 0].eq(1).all()
    assert colours[:, 1:].eq(0.5).all()
    with pytest.raises(InputError, match="one shape"):
        grey_perturbation(x, adv[:1])
    with pytest.raises(InputError, match="above zero"):
        grey_perturbation(x, adv, eps=0.0)


def test_heat_is_darkest_at_the_least_and_brightest_at_the_most() -> None:
    ramp = np.asarray(heat(torch.arange(9.0).view(3, 3), share=1.0).convert("L")).astype(int).flatten()
    assert (np.diff(ramp) > 0).all()
    assert ramp[0] < 40
    assert ramp[-1] > 230
    assert np.ptp(np.asarray(heat(torch.ones(2, 2)))[..., 0]) == 0
    assert heat(torch.rand(2, 2), Image.new("RGB", (8, 8))).size == (8, 8)


def test_a_chart_is_as_high_as_its_values() -> None:
    def lowest_ink(value: float) -> int:
        page = draw_charts([Curve("", "", "", {"line": [[0.0, value], [1.0, value], [2.0, 10.0]]})])
        middle = np.asarray(page.convert("RGB")).astype(int)[:, 300]
        orange = (np.abs(middle - (13, 107, 134)).sum(1) < 30).nonzero()[0]
        return int(orange.mean())

    assert lowest_ink(8.0) < lowest_ink(5.0) < lowest_ink(2.0)
    spacing = lowest_ink(2.0) - lowest_ink(5.0), lowest_ink(5.0) - lowest_ink(8.0)
    assert abs(spacing[0] - spacing[1]) <= 2


def test_a_png_keeps_black_and_white_whatever_its_levels(tmp_path: Path) -> None:
    ramp = Image.fromarray(np.arange(256, dtype=np.uint8)[None, :, None].repeat(3, axis=2))
    save_png(ramp, tmp_path / "all.png")
    assert Image.open(tmp_path / "all.png").tobytes() == ramp.tobytes()
    save_png(ramp, tmp_path / "few.png", levels=6)
    found = np.unique(np.asarray(Image.open(tmp_path / "few.png")))
    assert found.tolist() == [0, 51, 102, 153, 204, 255]


def test_red_is_above_and_blue_below() -> None:
    shown = np.asarray(signed(torch.tensor([[1.0, 0.0], [-1.0, 0.5]]), 1.0)).astype(int)
    red, white, blue, pink = shown[0, 0], shown[0, -1], shown[-1, 0], shown[-1, -1]
    assert red[0] > 150 > red[2]
    assert white.tolist() == [255, 255, 255]
    assert blue[2] > 150 > blue[0]
    assert red[2] < pink[2] < 255


def test_amplified_differences_fill_the_range_around_grey() -> None:
    clean = np.full((2, 2, 3), 100, dtype=np.uint8)
    adv = clean.copy()
    adv[0, 0], adv[1, 1] = 108, 96
    assert amplification([(clean, adv), (clean, clean)]) == 127 // 8
    assert amplification([(clean, clean)]) == amplification([]) == 1
    grey = amplified(clean, adv, 15)
    assert grey[0, 0].tolist() == [128 + 120] * 3
    assert grey[1, 1].tolist() == [128 - 60] * 3
    assert grey[0, 1].tolist() == [128] * 3


def test_masks_have_a_colour_for_every_class_and_void_has_none() -> None:
    mask = torch.arange(9).view(3, 3)
    shown = np.asarray(coloured_mask(mask, 9)).reshape(9, 3)
    assert len({tuple(colour) for colour in shown.tolist()}) == 9
    assert coloured_mask(torch.tensor([[0, 255]]), 8).getpixel((1, 0)) == (255, 255, 255)
    x = torch.zeros(3, 1, 2)
    over = mask_over(x, torch.tensor([[0, 255]]), 8)
    assert over.getpixel((1, 0)) == (0, 0, 0)
    assert max(over.getpixel((0, 0))) > 50  # type: ignore[arg-type]


def test_pixels_are_grey_levels_and_one_channel_becomes_three() -> None:
    x = torch.tensor([0.0, 0.5, 1.0, 1.5]).view(1, 2, 2)
    assert pixels(x)[..., 0].tolist() == [[0, 128], [255, 255]]
    assert pixels(x).shape == (2, 2, 3)


def test_a_grid_places_its_tiles_and_shortens_what_does_not_fit() -> None:
    red, blue = Image.new("RGB", (8, 8), (255, 0, 0)), Image.new("RGB", (8, 8), (0, 0, 255))
    page = draw_grid(Grid([Row([Tile(red), Tile(None), Tile(blue, "a note " * 40)])]), width=316)
    assert page.size == (316, 100 + style.SMALL + 5)
    assert page.getpixel((50, 50)) == (255, 0, 0)
    assert page.getpixel((158, 50)) == (255, 255, 255)
    assert page.getpixel((266, 50)) == (0, 0, 255)
    assert style.shorten("a note " * 40, 100, style.SMALL).endswith("…")
    lines = style.wrap("robvit-mini-robust-and-long ones", 90, 15)
    assert all(style.text_width(line, 15) <= 90 for line in lines)
    assert "".join(lines).replace(" ", "") == "robvit-mini-robust-and-longones"  # nothing of it is cut
    assert style.wrap("a-word", 90, 15) == ["a-word"]
    assert [len(row.tiles) for row in tiled([Tile(red)] * 7, 3).rows] == [3, 3, 1]


def test_a_note_may_reach_over_tiles_without_one() -> None:
    def ink(second: str) -> int:
        row = Row([Tile(None, "a note that is long"), Tile(None, second)])
        return int((np.asarray(draw_grid(Grid([row]), width=208).convert("L"))[100:, 104:] < 128).sum())

    assert ink("") > 0
    assert ink(".") < ink("")


def test_a_page_gets_small_images_exactly_and_large_ones_reduced() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (600, 600, 3), dtype=np.uint8)
    small, large = Image.fromarray(noise[:32, :32]), Image.fromarray(noise)
    (row,) = Grid([Row([Tile(small, "note"), Tile(large), Tile()], "name")], ["a", "b", "c"]).data()["rows"]
    first, second, third = row["tiles"]
    assert (row["name"], first["note"], first["small"], second["small"]) == ("name", "note", True, False)
    assert first["source"].startswith("data:image/png;base64,")
    assert second["source"].startswith("data:image/webp;base64,")
    assert len(second["source"]) < 100_000
    assert third["source"] == ""


def test_an_attack_sheet_shows_every_pair_with_one_factor() -> None:
    clean = np.full((4, 4, 3), 100, dtype=np.uint8)
    pairs = [Pair(clean, clean + 4 * (i + 1), "cat", "dog", i == 0) for i in range(3)]
    page = attack_sheet(pairs, title="pgd within linf 8/255")
    assert page.width == style.WIDTH
    colours = {colour for _, colour in page.getcolors(1 << 20) or []}
    for pair in pairs:
        assert tuple(pair.adversarial[0, 0].tolist()) in colours
        assert tuple(amplified(clean, pair.adversarial, 127 // 12)[0, 0].tolist()) in colours
    assert attack_sheet(pairs[:1], title="one").height < page.height


def test_parts_stand_beside_and_below_each_other() -> None:
    parts = [Image.new("RGB", (10, height), (height, 0, 0)) for height in (20, 30, 40)]
    page = beside(parts, 2, gap=4, width=44)
    assert page.size == (44, 30 + 4 + 40)
    assert [page.getpixel(at) for at in ((0, 0), (24, 29), (0, 73))] == [(20, 0, 0), (30, 0, 0), (40, 0, 0)]
    assert sheet("Title", "Caption.", parts).height > sum(part.height for part in parts)


def edges_are_free(page: Image.Image, *columns: int) -> bool:
    """Whether nothing is drawn there, so that no text is cut."""
    return bool((np.asarray(page.convert("L"))[:, columns] > 250).all())


@pytest.mark.parametrize("reach", [1.0, 1234567.0])
def test_no_name_of_a_surfaces_axis_is_cut(reach: float) -> None:
    long = "1 - cosine to the clean features of the model"
    one = Surface("", long, long, long, 3, 3, reach, mesh=[[0.0, reach / 2, reach]] * 3, x_ends=(-1.0, 2.0))
    assert edges_are_free(draw_surfaces([one, one]), 0, -1)


def test_no_name_of_a_charts_axis_is_cut() -> None:
    curve = Curve("", "a name", "fraction of the patches' attention", {"line": [[1.0, 0.5], [2.0, 0.25]]})
    assert edges_are_free(draw_charts([curve] * 12), -1)
    assert edges_are_free(draw_charts([Curve("", "x" * 99, "y" * 99, {"line": [[1.0, 0.5]]})]), -1)


def test_an_svg_chart_escapes_its_names_and_places_its_points() -> None:
    found = svg_chart({"<b>": [(0.0, 0.0), (8.0, 1.0)]}, "x <", "y", until=16.0)
    assert "<b>" not in found
    assert "x &lt;" in found
    assert "points='40.0,156.0 256.0,12.0'" in found
    below = svg_chart({"cosine": [(1.0, -1.0)]}, "x", "y", until=1.0)
    assert "cx='472.0' cy='156.0'" in below  # minus one stands at the bottom


def test_the_page_has_the_same_colours() -> None:
    text = resources.files("robvit.report").joinpath("templates", "page.css").read_text("utf-8")
    assert re.findall(r"--(?:accent|c\d): light-dark\((#\w+),", text) == list(style.COLOURS)


def test_letters_that_the_font_lacks_are_replaced() -> None:
    assert style.printable("Bär – 3 × ε ≤ 中, café ±1…") == "Bar - 3 x eps <= ?, cafe ±1…"
    for letter in style.printable("".join(map(chr, range(32, 0x2100)))):
        assert letter == "?" or style.font(20).getmask(letter).getbbox() or letter == " "
    missing = bytes(style.font(20).getmask("\ue000"))
    assert all(bytes(style.font(20).getmask(letter)) != missing for letter in style._KNOWN)
