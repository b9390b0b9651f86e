"""A run folder → its summary, pictures and report, written beside the raw data. The analysis' one entry that writes."""

from dataclasses import dataclass
from pathlib import Path

from analysis.figures import draw_all
from analysis.load import load_run
from analysis.report import make_blocks, render
from analysis.style import save
from analysis.summary import Summary, summarize
from contracts.runs import PLOTS_FOLDER, REPORT_FILE, SUMMARY_FILE

#: Where a report outside its run keeps its pictures and summary.
KEPT_FOLDER = "report"
TEMPLATE_FILE = Path(__file__).with_name("report_template.md")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What was written, and the numbers behind it."""

    report_file: Path
    summary: Summary


def publish(folder: Path, *, report_file: Path | None = None) -> Published:
    """Write summary, pictures and report into the run folder, or beside `report_file`.

    A report outside the run folder takes its pictures and summary along, into the folder `report` beside it, so that
    it can be kept without the run. An existing one keeps its prose: only what lies between marks is replaced.

    Raises:
        RunUnreadableError: the folder holds no run of this format.
        ReportMarksError: the report's marks are not the ones of this version.
    """
    run = load_run(folder)
    summary = summarize(run)
    target = report_file or folder / REPORT_FILE
    beside = target.parent / KEPT_FOLDER if report_file else folder
    beside.mkdir(exist_ok=True)
    summary.rows.to_csv(beside / SUMMARY_FILE, index=False, float_format="%.6g", lineterminator="\n")
    pictures = draw_all(run, summary)
    for picture in pictures:
        save(picture, beside / PLOTS_FOLDER)
    text = (target if report_file and target.exists() else TEMPLATE_FILE).read_text(encoding="utf-8")
    plots = (beside / PLOTS_FOLDER).relative_to(target.parent).as_posix()
    target.write_text(render(text, make_blocks(run, summary, pictures, plots=plots)), encoding="utf-8")
    return Published(report_file=target, summary=summary)
