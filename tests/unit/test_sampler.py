from contracts.runs import Metric
from loadtest.sampler import parse_gauges

PAGE = """# HELP spillway_jobs Jobs by state.
# TYPE spillway_jobs gauge
spillway_jobs{state="queued"} 12.0
spillway_jobs{state="processing"} 2.0
spillway_jobs{state="uploading"} 1.0
spillway_places_held 15.0
spillway_oldest_unstarted_seconds 3.25
process_cpu_seconds_total 9.5
"""


def test_the_queue_gauges_are_read_from_a_prometheus_page() -> None:
    assert parse_gauges(PAGE) == {
        Metric.QUEUED_JOBS: 12.0,
        Metric.PROCESSING_JOBS: 2.0,
        Metric.UPLOADING_JOBS: 1.0,
        Metric.PLACES_HELD_JOBS: 15.0,
        Metric.OLDEST_UNSTARTED_S: 3.25,
    }


def test_garbage_instead_of_a_page_gives_no_sample() -> None:
    assert parse_gauges("<html>502 Bad Gateway</html>\n\n{} {}") == {}
