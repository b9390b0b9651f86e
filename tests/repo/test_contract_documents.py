"""`contracts/` is what the code does, and its rules can fail: no server is needed to know that."""

import ast
import copy
import json
import re
from pathlib import Path

import pytest

from app.api.openapi import OPEN_OPERATIONS, OPERATIONS
from app.core.settings import PREFIX, Settings
from contracts.errors import ErrorCode, FailureCode
from contracts.jobs import JobState
from contracts.messages import JobMessage, dead_letter_exchange, dead_letter_queue, jobs_queue
from stack import contract
from tests.contract import validate
from tests.repo.tidy.contract import DOCUMENTS, contract_findings, enum_values, foreign_words, malformed
from tests.repo.tidy.documents import REQUIREMENT, loose_lock
from tests.repo.tidy.sources import ROOT

CONTRACTS = ROOT / "contracts"
OPENAPI = json.loads((CONTRACTS / "openapi.json").read_text(encoding="utf-8"))
EXAMPLES = json.loads((CONTRACTS / "examples.json").read_text(encoding="utf-8"))
INFRASTRUCTURE = json.loads((CONTRACTS / "infrastructure.json").read_text(encoding="utf-8"))


def test_every_generated_document_is_rendered_from_this_code() -> None:
    assert contract.stale() == [], "stale: make docs"


def test_a_stale_document_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "contracts"
    folder.mkdir()
    for name in contract.DOCUMENTS:
        (folder / name).write_bytes((CONTRACTS / name).read_bytes())
    (folder / "openapi.json").write_text(contract.render_openapi().replace("readJob", "seeJob"), encoding="utf-8")
    monkeypatch.setattr(contract, "ROOT", tmp_path)
    assert contract.stale() == ["contracts/openapi.json"]
    assert contract.main(["--write"]) == 0
    assert contract.stale() == []


def test_the_documents_are_valid_and_the_examples_fit_them() -> None:
    assert list(validate.findings()) == []


def test_an_example_that_does_not_fit_is_seen() -> None:
    example = next(example for example in EXAMPLES["examples"] if example["operation"] == "readJob")
    wrong = copy.deepcopy(example)
    wrong["answer"]["body"]["status"] = "polishing"
    del wrong["answer"]["headers"]["ETag"]
    found = list(validate.example_findings(wrong, OPENAPI))
    assert len(found) == 2
    assert list(validate.example_findings({**example, "operation": "gone"}, OPENAPI)) == ["there is no operation gone"]
    undocumented = {**example, "answer": {**example["answer"], "status": 418}}
    assert list(validate.example_findings(undocumented, OPENAPI)) == ["readJob does not answer 418"]


def test_every_named_operation_is_there_and_asks_for_a_token_unless_it_is_open() -> None:
    operations = validate.operations(OPENAPI)
    assert operations.keys() == set(OPERATIONS.values())
    assert {name for name, operation in operations.items() if operation["security"] == []} == OPEN_OPERATIONS


def test_every_operation_documents_its_refusals_with_codes_of_the_closed_set() -> None:
    known = {code.value for code in ErrorCode}
    for name, response in OPENAPI["components"]["responses"].items():
        codes = response["content"]["application/problem+json"]["schema"]["properties"]["code"]["enum"]
        assert set(codes) <= known, name
    for name, operation in validate.operations(OPENAPI).items():
        assert {"400", "405", "431", "500"} <= operation["responses"].keys(), name


def test_the_closed_sets_are_read_from_the_code_as_text() -> None:
    errors = (CONTRACTS / "errors.py").read_text(encoding="utf-8")
    assert enum_values(errors, "ErrorCode") == set(ErrorCode)
    assert enum_values(errors, "FailureCode") == set(FailureCode)
    assert enum_values((CONTRACTS / "jobs.py").read_text(encoding="utf-8"), "JobState") == set(JobState)


def test_the_contract_needs_no_validator_to_be_judged() -> None:
    assert [str(finding) for finding in contract_findings(ROOT)] == []


def test_a_missing_document_is_seen(tmp_path: Path) -> None:
    assert {finding.path for finding in contract_findings(tmp_path)} == {f"contracts/{name}" for name in DOCUMENTS}


@pytest.mark.parametrize(("text", "count"), [("{}", 0), ("{", 1), ('{"a": 1, "a": 2}', 1), ("[1]", 0)])
def test_what_is_no_json_is_seen(text: str, count: int) -> None:
    assert len(list(malformed("contracts/x.json", text))) == count


def test_words_outside_the_closed_sets_are_seen() -> None:
    one = frozenset({"one"})
    bodies = [{"code": "one"}, {"code": "two"}, {"status": "two"}, {"status": "one", "error": {"code": "two"}}]
    examples = {"examples": [{"name": "x", "answer": {"body": body}} for body in bodies], "other_answers": []}
    found = [finding.message for finding in foreign_words(examples, errors=one, failures=one, states=one)]
    assert len(found) == 3
    unused = list(foreign_words({"examples": [], "other_answers": []}, errors=one, failures=one, states=one))
    assert [finding.message for finding in unused] == ["no example of the code `one`"]


def test_the_infrastructure_names_every_setting_and_no_other() -> None:
    assert [setting["name"] for setting in INFRASTRUCTURE["settings"]] == [
        PREFIX + name.upper() for name in Settings.model_fields
    ]
    named = set(re.findall(rf"{PREFIX}[A-Z0-9_]+", (CONTRACTS / "infrastructure.json").read_text(encoding="utf-8")))
    assert named - {PREFIX + name.upper() for name in Settings.model_fields} == set()


def test_no_secret_has_a_default_in_the_infrastructure() -> None:
    settings = {setting["name"]: setting for setting in INFRASTRUCTURE["settings"]}
    assert all("password" not in str(settings[name].get("default", "")) for name in INFRASTRUCTURE["secrets"])


def test_the_brokers_objects_are_named_as_the_code_names_them() -> None:
    objects = INFRASTRUCTURE["broker_objects"]
    assert objects["queue"] == jobs_queue("{prefix}")
    assert objects["dead_letter_queue"] == dead_letter_queue("{prefix}")
    assert objects["dead_letter_exchange"] == dead_letter_exchange("{prefix}")


def test_the_message_holds_ids_only() -> None:
    schema = json.loads((CONTRACTS / "message.schema.json").read_text(encoding="utf-8"))
    assert schema["properties"].keys() == JobMessage.model_fields.keys() == {"version", "job_id", "pipeline_version"}


def test_what_needs_only_python_3_9_is_written_for_it() -> None:
    for path in [*sorted((ROOT / "tests/smoke").glob("*.py")), ROOT / "tests/contract/validate.py"]:
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))


def test_the_validators_are_pinned_with_hashes() -> None:
    text = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8")
    assert list(loose_lock("requirements-dev.txt", text)) == []
    assert {"jsonschema", "openapi-spec-validator"} <= {match["name"] for match in REQUIREMENT.finditer(text)}


def test_the_readme_has_every_status_and_every_file() -> None:
    readme = (CONTRACTS / "README.md").read_text(encoding="utf-8")
    assert all(f"({name})" in readme for name in DOCUMENTS if name != "README.md")
    assert f"Version {OPENAPI['info']['version']};" in readme
