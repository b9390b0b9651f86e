"""REPORT.md says what the committed reference run says: every generated number is derived from its raw rows again."""

import shutil
from pathlib import Path

from analysis.publish import publish
from contracts.runs import SUMMARY_FILE
from tests.repo.tidy.sources import ROOT

REFERENCE = ROOT / "report/reference"


def test_the_report_is_made_from_the_committed_run_alone(tmp_path: Path) -> None:
    copy = tmp_path / "REPORT.md"
    shutil.copy(ROOT / "REPORT.md", copy)
    publish(REFERENCE, report_file=copy)
    assert copy.read_text(encoding="utf-8") == (ROOT / "REPORT.md").read_text(encoding="utf-8")
    assert (tmp_path / "report" / SUMMARY_FILE).read_text() == (ROOT / "report" / SUMMARY_FILE).read_text()


def test_a_changed_number_is_seen(tmp_path: Path) -> None:
    copy = tmp_path / "REPORT.md"
    text = (ROOT / "REPORT.md").read_text(encoding="utf-8")
    copy.write_text(text.replace("1. Capacity: ", "1. Capacity: 1", 1), encoding="utf-8")
    publish(REFERENCE, report_file=copy)
    assert copy.read_text(encoding="utf-8") == text != text.replace("1. Capacity: ", "1. Capacity: 1", 1)
