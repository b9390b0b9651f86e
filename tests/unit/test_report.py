import math
import re
from pathlib import Path

import pytest
from PIL import Image

from analysis.load import RunUnreadableError, load_run
from analysis.publish import TEMPLATE_FILE, publish
from analysis.report import ReportMarksError, render
from analysis.summary import summarize
from contracts.runs import MANIFEST_FILE
from tests.run_makers import whole_run

PLOT_BYTES_MAX = 200_000
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    whole_run(folder)
    publish(folder)
    return folder


def test_the_report_answers_first_in_five_lines(run_folder: Path) -> None:
    text = (run_folder / "REPORT.md").read_text()
    answer = text.split("<!-- generated:answer -->")[1].split("<!-- end:answer -->")[0]
    assert len(re.findall(r"^\d\. ", answer, re.MULTILINE)) == 5
    assert "Quick look, no inference" in answer
    assert text.index("## The answer") < text.index("## Can the numbers be trusted?") < text.index("## Results")


def test_the_numbers_of_the_answer_are_those_of_the_summary(run_folder: Path) -> None:
    summary = summarize(load_run(run_folder))
    text = (run_folder / "REPORT.md").read_text()
    drains = summary.rows[(summary.rows["kind"] == "drain") & (summary.rows["size"] == "2MP")]
    assert f"{drains['jobs_per_s'].max():.1f} photos/s of 2 MP" in text
    assert f"{summary.ratio_bare:.0%}".replace("%", " % of the bare loop") in text
    pulses = summary.rows[summary.rows["kind"] == "pulse"].set_index("policy")
    assert f"recovered {float(pulses['recovery_s']['none']):.0f} s after the pulse" in text


def test_publishing_twice_gives_the_same_bytes(run_folder: Path) -> None:
    files = [run_folder / "REPORT.md", run_folder / "summary.csv", *sorted((run_folder / "plots").iterdir())]
    before = [file.read_bytes() for file in files]
    publish(run_folder)
    assert [file.read_bytes() for file in files] == before


def test_every_picture_is_linked_small_and_has_words(run_folder: Path) -> None:
    text = (run_folder / "REPORT.md").read_text()
    linked = re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", text)
    assert {target for _, target in linked} == {f"plots/{file.name}" for file in (run_folder / "plots").iterdir()}
    for alt, target in linked:
        assert len(alt) > 40
        assert (run_folder / target).stat().st_size <= PLOT_BYTES_MAX
        with Image.open(run_folder / target) as image:
            assert image.width >= 1000


def test_prose_by_hand_survives_and_only_marked_parts_change(run_folder: Path) -> None:
    target = run_folder.parent / "kept" / "MINE.md"
    target.parent.mkdir()
    target.write_text(TEMPLATE_FILE.read_text().replace("## Limits", "## Limits\n\nMy own words."))
    publish(run_folder, report_file=target)
    assert "My own words." in target.read_text()
    assert "(report/plots/pulse.png)" in target.read_text()
    assert (target.parent / "report" / "plots" / "pulse.png").exists()


def test_a_mark_without_a_block_is_an_error() -> None:
    with pytest.raises(ReportMarksError, match="other"):
        render("<!-- generated:one -->\n<!-- end:one -->", {"one": "1", "other": "2"})


def test_a_run_that_was_interrupted_still_gives_a_report(tmp_path: Path) -> None:
    """Only the first cells are there: the report says how many are missing and claims nothing on their behalf."""
    whole_run(tmp_path)
    for folder in sorted((tmp_path / "cells").iterdir())[3:]:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    published = publish(tmp_path)
    assert "13 planned cell(s) have not run" in published.report_file.read_text()
    assert math.isnan(published.summary.ratio_direct) or published.summary.ratio_direct > 0


def test_a_run_without_any_cell_still_gives_a_report(tmp_path: Path) -> None:
    whole_run(tmp_path)
    (tmp_path / "cells").rename(tmp_path / "elsewhere")
    assert "16 planned cell(s) have not run" in publish(tmp_path).report_file.read_text()


def test_another_format_version_is_refused(tmp_path: Path) -> None:
    whole_run(tmp_path)
    manifest = tmp_path / MANIFEST_FILE
    manifest.write_text(manifest.read_text().replace('"format_version": 1', '"format_version": 99'))
    with pytest.raises(RunUnreadableError, match="99"):
        load_run(tmp_path)


def test_the_repository_report_has_the_marks_of_the_template() -> None:
    marks = re.compile(r"<!-- (?:generated|end):[a-z-]+ -->")
    assert marks.findall((ROOT / "REPORT.md").read_text()) == marks.findall(TEMPLATE_FILE.read_text())
