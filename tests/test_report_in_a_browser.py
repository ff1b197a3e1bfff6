"""The report of a run, opened in a real browser: numbers, both colour schemes, a phone, paper."""

import json
import re

import browser
import jax
import pytest

from truncgauss import cli

pytestmark = pytest.mark.skipif(not browser.found(), reason="there is no Chromium here")
CONTRAST = """
(() => {
  const light = text => { const c = text.match(/[0-9.]+/g).slice(0, 3).map(v => {
      const s = v / 255; return s <= 0.03928 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2]; };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  const ratios = [...document.querySelectorAll("h1, h2, p, th, td, pre")].map(element => {
    const ink = light(getComputedStyle(element).color);
    return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05); });
  return [paper, Math.min(...ratios)];
})()
"""  # relative luminance and contrast as WCAG 2.1 defines them


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of an experiment of few seconds whose report has every section."""
    place = tmp_path_factory.mktemp("shown")
    jax.local_devices()  # JAX has started, so that no test changes the devices of the others
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("MPLBACKEND", "Agg")
        words = ["--num_resamples", "2", "--num_samples", "200", "--shift.num", "21"]
        assert cli.main(["run", "selected_sample", *words]) == 0
    (found,) = (place / "runs").iterdir()
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with browser.browser(browser.found(), tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.slow
def test_a_browser_shows_every_number_and_asks_for_nothing(folder, page):
    page.open(folder / "report.html")
    text = " ".join(page.value("document.body.innerText").split())
    ended = json.loads((folder / "summary.json").read_text())
    made = json.loads((folder / "provenance.json").read_text())
    for line in ended["summary"]:
        assert " ".join(line.split()) in text
    for value in ended["values"].values():
        assert (f"{value:.6g}" if isinstance(value, float) else str(value)) in text
    estimate = ended["values"]["estimates/loc[sepal_length]"]
    stderr = ended["values"]["estimates/loc[sepal_length].stderr"]
    assert f"loc[sepal_length] {estimate:.6g} {stderr:.6g}" in text
    assert made["versions"]["jax"] in text and made["started"] in text
    assert page.value("document.images.length") == 1
    assert page.value("document.images[0].complete && document.images[0].naturalWidth > 100")
    assert page.requests() == []
    assert not [event for event in page.events if event["method"] == "Log.entryAdded"]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_a_report_can_be_read_in_either_scheme_on_a_phone_and_on_a_desk(
    width, scheme, folder, page
):
    page.open(folder / "report.html", width, scheme)
    paper, contrast = page.value(CONTRAST)
    assert (paper > 0.5) == (scheme == "light") and contrast >= 4.5
    assert page.value("document.documentElement.scrollWidth <= window.innerWidth")
    # A word of a name is not broken in two.
    names = "[...document.querySelectorAll('th')].filter(th => th.innerText == 'seconds')"
    assert page.value(f"{names}[0].getClientRects().length == 1 && {names}[0].offsetHeight < 60")


@pytest.mark.slow
def test_a_report_is_printed_black_on_white_whatever_the_screen(folder, page):
    page.open(folder / "report.html", 800, "dark", media="print")
    paper, contrast = page.value(CONTRAST)
    assert paper == 1 and contrast >= 4.5
    assert page.value("getComputedStyle(document.body).color") == "rgb(27, 27, 27)"
    printed = page.pdf()
    assert printed.startswith(b"%PDF") and 2 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 8
