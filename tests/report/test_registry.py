"""The registry's record: the tutorial's ledger leaves out no field of tiers 1 and 2; nothing is made up."""

from __future__ import annotations

import copy
import io
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from shell import Shell

from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.events import DiscreteLaplace, Gaussian, Repeat
from tacit.ledger import Ledger, Policy, PureBudget, RenyiBudget
from tacit.ledger.ledger import charge_key
from tacit.ledger.policy import read_policy
from tacit.report.certificate import make_certificate
from tacit.report.checklist import (
    CHOICES,
    NOT_STATED,
    STATEMENTS,
    ask_statements,
    check_statements,
    statements_text,
)
from tacit.report.document import yaml_text
from tacit.report.registry import fields_missing, registry_record
from tacit.report.verification import check_against, read_schema

yaml: Any = pytest.importorskip("yaml")
jsonschema: Any = pytest.importorskip("jsonschema")

Data = dict[str, Any]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "regulators.md").read_text(encoding="utf-8")
SCHEMA = read_schema("registry.schema.json")
TOLD: dict[str, str] = tomllib.loads(re.findall(r"^```toml\n(.*?)^```$", PAGE, re.M | re.S)[0])
REQUIRED = {
    "product", "curator", "description", "intended_use", "product_type", "region", "published",
    "record_author",
}  # fmt: skip
PUBLISHED = {  # by hand from the registry's schema: field and tier
    1: "name data_curators intended_use data_product_type data_product_region description publication_date "
    "data_product_sector sources notes",
    2: "variant_name privacy_unit privacy_parameters model_name release_type data_source_type access_type",
    3: "data_domain unprotected_quantities privacy_unit_details privacy_parameters_details actors "
    "data_source_type_details access_type_details post_processing composition "
    "preprocessing_and_hyperparameter_tuning mechanisms justification",
}


@pytest.fixture(scope="module")
def tutorial_ledger(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The ledger of the tutorial, with its policy, a training of 40 steps and its three queries."""
    folder = tmp_path_factory.mktemp("ledger")
    text = (ROOT / "docs" / "tutorials" / "team-budget.md").read_text(encoding="utf-8")
    (folder / "policy.toml").write_text(
        text.partition("cat > policy.toml <<'END'\n")[2].partition("END\n")[0]
    )
    url = str(folder / "budget.db")
    ledger = Ledger.create(url)
    ledger.open_dataset("patients", read_policy(folder / "policy.toml"))
    ledger.register_content("patients", "0" * 64)
    ledger.settle(
        ledger.reserve(
            "patients", Repeat(Gaussian(20.0), 40), key=charge_key("a1", 0, 40), request={}, label="a model"
        ),
        0,
    )
    for number, scale in enumerate((5.0, 2.5, 2.0)):
        charge = ledger.reserve("patients", DiscreteLaplace(scale=scale), key=f"q{number}", request={})
        ledger.settle(charge, 1)
    return url


@pytest.fixture(scope="module")
def certified(tutorial_ledger: str) -> Data:
    return make_certificate(Ledger.open(tutorial_ledger), "patients", statements=TOLD).data


def flat(record: Data) -> Data:
    return {name: value for part in record["deployment"].values() for name, value in part.items()}


def test_the_tutorials_ledger_leaves_no_field_of_any_tier_out(certified: Data) -> None:
    record = registry_record(certified)
    fields = flat(record)
    for tier, names in PUBLISHED.items():
        assert not [name for name in names.split() if not fields.get(name) or NOT_STATED in str(fields[name])]
        assert fields_missing(record, tier) == []
    assert record["tier"] == 3
    jsonschema.Draft202012Validator(SCHEMA).validate(record)
    assert yaml.safe_load(yaml_text(record)) == record
    assert fields["privacy_parameters"] == {"epsilon": 4.0, "delta": 1e-4}
    assert fields["variant_name"] == "Approximate DP"


def test_without_the_optional_statements_it_is_of_tier_1_or_2(tutorial_ledger: str) -> None:
    ledger = Ledger.open(tutorial_ledger)
    two = {key: TOLD[key] for key in (*REQUIRED, "contact", "sector", "sources", "data_source")}
    record = registry_record(make_certificate(ledger, "patients", statements=two).data)
    assert record["tier"] == 2
    assert "deployment.implementation.justification" in fields_missing(record, 3)
    for left_out in ("contact", "sector", "sources", "data_source"):
        told = {key: text for key, text in two.items() if key != left_out}
        record = registry_record(make_certificate(ledger, "patients", statements=told).data)
        assert record["tier"] == 1
        assert len(fields_missing(record, 2)) == 1


@pytest.mark.parametrize("key", sorted(set(REQUIRED) - {"product_type"}))
def test_what_the_registry_requires_is_asked_for(certified: Data, key: str) -> None:
    data = copy.deepcopy(certified)
    del data["statements"][key]
    with pytest.raises(InvalidInput, match=f"requires these statements: {key}, "):
        registry_record(data)


def test_the_kind_of_product_follows_from_the_ledger(certified: Data) -> None:
    data = copy.deepcopy(certified)
    del data["statements"]["product_type"]
    data["kinds"] = {"query": 3, "training": 1}
    record = registry_record(data)
    assert record["deployment"]["basic"]["data_product_type"] == "Machine learning model"
    assert "Kind: also SQL queries" in record["deployment"]["administrative"]["notes"]


def test_the_schema_has_the_published_fields_and_tiers() -> None:
    found: dict[str, str] = {}

    def walk(rule: Data) -> None:
        for name, inner in rule.get("properties", {}).items():
            found[name] = inner.get("description", "")
            walk(inner)

    walk(SCHEMA)
    for tier, names in PUBLISHED.items():
        assert {name: found[name] for name in names.split()} == dict.fromkeys(names.split(), f"Tier {tier}")
    basic = SCHEMA["properties"]["deployment"]["properties"]["basic"]["properties"]
    assert tuple(basic["data_product_type"]["enum"]) == CHOICES["product_type"]
    assert tuple(basic["data_product_sector"]["enum"]) == CHOICES["sector"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("tier",), 0),
        (("status",), "Done"),
        (("deployment", "basic", "publication_date"), "1/1/2026"),
        (("deployment", "basic", "surprise"), "x"),
        (("deployment", "basic", "data_curators"), []),
        (("deployment", "deployment_model", "model_name"), "central"),
    ],
)
def test_a_record_that_the_registry_would_not_take_does_not_fit(
    certified: Data, path: tuple[str, ...], value: object
) -> None:
    record = registry_record(certified)
    check_against(SCHEMA, record, what="the record")
    part = record
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    with pytest.raises(InvalidInput, match="the record"):
        check_against(SCHEMA, record, what="the record")
    assert list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(record))


def test_epsilon_is_the_cap_and_pure_budgets_have_no_delta() -> None:
    ledger = Ledger.create("sqlite://")
    ledger.open_dataset("visits", Policy(unit="visit", adjacency="add-remove", budget=PureBudget(1.5)))
    ledger.settle(ledger.reserve("visits", DiscreteLaplace(scale=4.0), key="q", request={}), 1)
    fields = flat(registry_record(make_certificate(ledger, "visits", statements=TOLD).data))
    assert (fields["variant_name"], fields["privacy_parameters"]) == ("Pure DP", {"epsilon": 1.5})
    assert fields["access_type"] == "Interactive"
    assert "taken to be one visit" in fields["privacy_unit"], "no column says whose a row is"
    trained = Ledger.create("sqlite://")
    policy = Policy(unit="patient", unit_column="id", adjacency="add-remove", budget=RenyiBudget(1.0, 1e-5))
    trained.open_dataset("visits", policy)
    trained.reserve("visits", Gaussian(9.0), key=charge_key("r", 0, 1), request={})
    fields = flat(registry_record(make_certificate(trained, "visits", statements=TOLD).data))
    assert (fields["access_type"], fields["privacy_unit"]) == ("Non-interactive", "one patient")


def test_a_ledger_with_a_test_key_has_no_record(certified: Data) -> None:
    data = copy.deepcopy(certified)
    data["ledger"]["test_keys"] = 1
    with pytest.raises(PrivacyRefusal, match="fixed test key"):
        registry_record(data)


def test_every_text_of_a_record_is_a_line_or_a_statement(certified: Data) -> None:
    said = {f"- {line['name']} ({line['grade']}): {line['value']}" for line in certified["lines"]}
    fields = flat(registry_record(certified))
    listed = [value for name, value in fields.items() if name != "notes" and str(value).startswith("- ")]
    assert len(listed) >= 10
    assert {line for text in listed for line in text.splitlines()} <= said


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("product_type", "A model", "must be one of Summary statistics"),
        ("sector", "Farming", "If none fits, remove it"),
        ("data_source", "static", "must be one of Static, Dynamic"),
        ("published", "2026-13-01", "a day such as"),
        ("published", "20261130", "a day such as"),
        ("intended_use", "to publish anonymous data", "anonymous"),
        ("trial", "one", "'trial' is not a statement"),
        ("trials", " ", "must be a string"),
        ("trials", 3, "must be a string"),
    ],
)
def test_statements_for_the_registry_are_checked(key: str, text: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        check_statements({key: text})


# --- the questions ---------------------------------------------------------------------------------------


def test_each_statement_is_asked_once_and_a_wrong_answer_again() -> None:
    asked: list[tuple[str, str]] = []

    def ask(key: str, about: str, problem: str) -> str:
        asked.append((key, problem))
        assert about.strip()
        assert "{" not in about
        return {"sector": "Health" if not problem else "Healthcare", "published": "2026-11-30"}.get(key, "")

    found = ask_statements({"trials": "one"}, ask, unit="patient")
    assert found == {"trials": "one", "sector": "Healthcare", "published": "2026-11-30"}
    keys = [key for key, _ in asked]
    assert keys.count("sector") == 2
    assert set(keys) == set(STATEMENTS) - {"trials"}
    assert keys[0] == "product"


def test_the_file_of_answers_is_read_as_it_was_meant() -> None:
    told = {"product": 'the "best" \\ of\nall \x7f', "trials": "two ü 😀"}
    assert tomllib.loads(statements_text(told)) == told


def test_the_command_asks_keeps_the_answers_and_writes_the_record(
    tutorial_ledger: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shell: Shell
) -> None:
    monkeypatch.chdir(tmp_path)
    begun = '# by the office\ntrials = "one"\npublished = 2026-11-30'
    Path("told.toml").write_text(begun)
    order = sorted(STATEMENTS, key=lambda key: STATEMENTS[key][0] != "M")
    answers = [TOLD.get(key, "") for key in order if key not in ("trials", "published")]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(answers) + "\n"))
    command = ("certificate", tutorial_ledger, "--dataset", "patients", "--statements", "told.toml")
    record = (*command, "--format", "registry", "--out", "patients.yaml")
    _, told = shell.both(*record, "--interactive")
    assert Path("told.toml").read_text(encoding="utf-8").startswith(f"{begun}\nseveral_ids = ")
    assert "statements added to told.toml" in told
    assert yaml.safe_load(Path("patients.yaml").read_text(encoding="utf-8"))["tier"] == 3
    printed, told = shell.both(*record)
    assert yaml.safe_load(printed)["deployment"]["basic"]["name"] == TOLD["product"]
    assert "A record of tier 3, a draft" in told


def test_answers_without_a_file_go_to_statements_toml(
    tutorial_ledger: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shell: Shell
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ("certificate", tutorial_ledger, "--dataset", "patients", "--interactive")
    for answer in ("Tumours\n", "The clinic\n"):  # and then the end of the input
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        printed, _ = shell.both(*command)
    kept = Path("statements.toml").read_text(encoding="utf-8")
    assert kept == 'product = "Tumours"\ncurator = "The clinic"\n'
    assert "Tumours" in printed


# --- the page --------------------------------------------------------------------------------------------


def rows() -> list[list[str]]:
    part = PAGE.partition("## Each line")[2].partition("## What a certificate is no evidence")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ") and not line.startswith("| Line |")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_page_maps_every_line_with_a_source(certified: Data) -> None:
    mapped = [name for line, *_ in rows() for name in line.split("; ")]
    assert len(mapped) == len(set(mapped)), "each line once"
    source = (ROOT / "src/tacit/report/templates/claims.txt").read_text(encoding="utf-8")
    fixed = {re.sub(" $", " 1", name) for name in re.findall(r'call line\("[A-M]", "([^"]+)"', source)}
    stated = {name.replace("{unit}", "unit") for _, name, _ in STATEMENTS.values()}
    lines = {line["name"] for line in certified["lines"]}
    numbered = r" (?:\d+|\{[^}]*\})(?:\{[^}]*\})?$"  # Groups of 2, Mechanism {number}{of_it}
    wanted = {
        re.sub(numbered, " n", name).replace("of one patient", "of one unit")
        for name in fixed | stated | lines
    }
    assert wanted == set(mapped)
    for line, field, asked, evidence in rows():
        assert evidence, line
        assert "[" in asked or "[R]" in field, f"{line} has no source"


def test_every_source_of_the_page_is_listed_and_its_fields_exist(certified: Data) -> None:
    listed = set(re.findall(r"^\| ([A-Z]) \|", PAGE.partition("## Sources")[2], re.M))
    cited = {
        part.strip()[0]
        for group in re.findall(r"\[([A-Z][^\]]*)\](?!\()", PAGE)
        for part in re.split("[;,] (?=[A-Z]\\b)", group)
    }
    assert cited == listed
    fields = set(flat(registry_record(certified))) | {"notes"}
    for _, field, _, _ in rows():
        assert set(re.findall(r"`(\w+)`", field)) <= fields
