"""`contract new` and `contract draft` as people use them, up to a finished job."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.server.commanding import Ran, Run, child_environment

KEY = "sk-live-never-shown-71c"


def forbear(*arguments: str, typed: str = "", **environment: str) -> Ran:
    """The command as a process of its own."""
    ran = subprocess.run(
        [sys.executable, "-m", "forbear", *arguments],
        input=typed,
        capture_output=True,
        encoding="utf-8",
        env=child_environment() | environment,
        timeout=120,
    )
    assert "Traceback" not in ran.stdout + ran.stderr
    assert KEY not in ran.stdout + ran.stderr
    return Ran(ran.returncode, ran.stdout, ran.stderr)


@contextmanager
def provider() -> Iterator[str]:
    """A provider on loopback in a process of its own; its address."""
    child = subprocess.Popen(
        [sys.executable, "-m", "forbear.server.fake"],
        stdout=subprocess.PIPE,
        encoding="utf-8",
        env=child_environment(),
    )
    try:
        assert child.stdout is not None
        yield child.stdout.readline().strip()
    finally:
        child.kill()
        child.communicate()


def asked(method: str, url: str, body: Any = None) -> tuple[str, Any]:
    """What a person sees who sends a request: the answer as `curl -i` prints it, and as JSON."""
    request = urllib.request.Request(
        url,
        None if body is None else json.dumps(body).encode(),
        {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read().decode()
        head = f"HTTP/1.1 {answer.status} {answer.reason}\r\n{answer.headers.as_string()}"
        return f"{head.rstrip()}\r\n\r\n{text}", json.loads(text) if text else None


# --- the whole way --------------------------------------------------------------------------


def test_from_a_curl_line_and_two_answers_to_a_finished_job(tmp_path: Path) -> None:
    home = {"FORBEAR_HOME": str(tmp_path / "home")}
    with provider() as url:
        for number in (1, 2):
            plan = {"id": f"exp_{number}x", "states": ["running", "done"], "result": {"rows": 3}}
            asked("POST", f"{url}/__job", plan)
        # What a person does first: the request by hand, and a look at the state.
        submitted, job = asked("POST", f"{url}/exports", {"dataset": "sales"})
        _, looked = asked("GET", f"{url}/exports/{job['id']}")
        _, looked = asked("GET", f"{url}/exports/{job['id']}")
        (tmp_path / "submitted.txt").write_text(submitted, encoding="utf-8")
        (tmp_path / "looked.json").write_text(json.dumps(looked), encoding="utf-8")
        line = (
            f"curl -i -X POST '{url}/exports' \\\n  -H 'Authorization: Bearer {KEY}' \\\n"
            """  -H 'Content-Type: application/json' --data-raw '{"dataset": "sales"}'\n"""
        )
        drafted = forbear(
            *("contract", "new", "exp", "--from-curl", "-"),
            *("--answer", str(tmp_path / "submitted.txt")),
            *("--answer", str(tmp_path / "looked.json")),
            typed=line,
            **home,
        )
        assert drafted.code == 0, drafted.err
        contract = tmp_path / "home" / "contracts" / "exp.toml"
        assert f"Wrote {contract}: job export" in drafted.out
        assert "export EXP_TOKEN=" in drafted.out
        text = contract.read_text(encoding="utf-8")
        assert KEY not in text

        unfinished = forbear("contract", "check", **home)
        assert unfinished.code == 1
        assert "jobs.export.succeeded: has no words" in unfinished.out

        # What is left for the person: the words, and how long it takes.
        for before, after in (
            ("waiting   = []", 'waiting   = ["queued", "running"]'),
            ("succeeded = []", 'succeeded = ["done"]'),
            ("failed    = []", 'failed    = ["failed"]'),
            ('"5m"', '"4s"'),
            ('"1h"', '"1m"'),
        ):
            assert text.count(before) == 1
            text = text.replace(before, after)
        contract.write_text(text, encoding="utf-8")
        checked = forbear("contract", "check", **home)
        assert checked.code == 0, checked.out

        *_, attempt = drafted.out.strip().split("\n")
        command = attempt.partition("forbear ")[2].split()
        assert command == ["try", "exp.export", "dataset=sales"]
        tried = forbear(*command, **home, EXP_TOKEN=KEY)
        assert tried.code == 0, tried.out + tried.err
        assert '"rows": 3' in tried.out.replace('"rows":3', '"rows": 3')
        _, arrivals = asked("GET", f"{url}/__arrivals")
        sent = [one for one in arrivals if (one["method"], one["path"]) == ("POST", "/exports")]
        assert [json.loads(one["body"]) for one in sent] == [{"dataset": "sales"}] * 2
        assert all(one["headers"]["authorization"] == f"Bearer {KEY}" for one in sent)


def test_the_page_about_it_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "first-contract.md").read_text(encoding="utf-8")
    line = page.partition("```sh\ncurl")[2].partition(" > submitted.txt")[0]
    command = re.findall(r"^forbear (contract new .*)$", page, re.MULTILINE)[0]
    shown = page.partition("```text\n")[2].partition("```")[0].strip()
    answers = {"submitted.txt": "queued", "done.json": "done"}
    for name, state in answers.items():
        text = json.dumps({"job_id": "exp_71c", "state": state})
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    ran = forbear(*shlex.split(command), typed=f"curl{line}", FORBEAR_HOME=str(home))
    assert ran.out.startswith(shown.replace("~/.local/share/forbear", str(home)))
    words = page.partition("```toml\n")[2].partition("```")[0]
    text = (home / "contracts" / "exp.toml").read_text(encoding="utf-8")
    text = re.sub(r"^(waiting|succeeded|failed|cancelled) .*\n", "", text, flags=re.MULTILINE)
    chosen = text.replace("expired   = []\n", words)
    (home / "contracts" / "exp.toml").write_text(chosen, encoding="utf-8")
    checked = forbear("contract", "check", "--sample", "done.json", FORBEAR_HOME=str(home))
    assert "jobs.export.status, 200: succeeded" in checked.out


# --- new ------------------------------------------------------------------------------------

CURL = f"curl https://api.new.example/v1/exports -H 'X-Api-Key: {KEY}' -d '{{\"dataset\": \"s\"}}'"


def test_nothing_is_overwritten(home: Path, run: Run) -> None:
    before = (home / "contracts" / "exp.toml").read_bytes()
    refused = run("contract", "new", "exp", "--from-curl", CURL)
    assert refused.code == 2
    assert "is there already and was not changed" in refused.err
    assert (home / "contracts" / "exp.toml").read_bytes() == before
    other = home / "mine.toml"
    assert run("contract", "new", "exp", "--from-curl", CURL, "--out", str(other)).code == 0
    assert run("contract", "new", "exp", "--from-curl", CURL, "--out", str(other)).code == 2


def test_printing_writes_nothing_and_says_only_the_file(home: Path, run: Run) -> None:
    printed = run("contract", "new", "other", "--from-curl", CURL, "--print", "--call")
    assert (printed.code, printed.err) == (0, "")
    assert tomllib.loads(printed.out)["auth"] == "header X-Api-Key env:OTHER_TOKEN"
    assert KEY not in printed.out
    assert [one.name for one in (home / "contracts").iterdir()] == ["exp.toml"]


ODD = "Zq7Xc4narySecretOfSomebody"


@pytest.mark.parametrize(
    "rest",
    [
        *(
            pytest.param(f"-H '{name}: {ODD}'", id=name)
            for name in ("X-Shop", "XAPIKEY", "accesstoken", "JSESSIONID", "X-Pass", "bearer")
        ),
        pytest.param(f'--json \'{{"items": [{{"password": "{ODD}"}}]}}\'', id="in a list"),
        pytest.param(f'--json \'{{"password": {{"is": "{ODD[:9]}"}}}}\'', id="in an object"),
        pytest.param(f'--json \'{{"back": "https://u:{ODD}@a.example/"}}\'', id="a login"),
        pytest.param(f'--json \'{{"list": ["Authorization: {ODD}"]}}\'', id="a header as text"),
        pytest.param(
            f'--json \'{{"env": [{{"name": "API_TOKEN", "value": "{ODD[:9]}"}}]}}\'',
            id="a variable",
        ),
        pytest.param(f"-d 'code={ODD}'", id="an opaque field"),
        pytest.param("-d 'card[number]=4242424242424242'", id="a card"),
    ],
)
def test_a_secret_in_an_odd_place_is_neither_written_nor_shown(
    home: Path, run: Run, rest: str
) -> None:
    line = f"curl -X POST https://api.new.example/v1/bot12:{ODD}/exports {rest}"
    made = run("contract", "new", "other", "--from-curl", line)
    assert made.code == 0
    text = made.out + made.err + (home / "contracts" / "other.toml").read_text()
    assert "forbear try other." in text
    assert not [one for one in (ODD, ODD[:9], "4242424242424242") if one in text]


def test_what_is_no_base64_is_no_fault_of_the_program(home: Path, run: Run) -> None:
    line = "curl https://api.new.example/v1/things -H 'Authorization: Basic geheïm-12345'"
    made = run("contract", "new", "other", "--from-curl", line, "--print")
    assert (made.code, "gehe" in made.out) == (0, False)
    entry = {
        "request": {"method": "GET", "url": "https://api.new.example/"},
        "response": {"content": {"text": "é", "encoding": "base64"}},
    }
    (home / "odd.har").write_text(json.dumps({"log": {"entries": [entry]}}), encoding="utf-8")
    refused = run("contract", "draft", "--har", str(home / "odd.har"), "--name", "other")
    assert (refused.code, "no request with a JSON answer" in refused.err) == (2, True)


def test_a_file_of_another_name_says_whose_provider_it_is(home: Path, run: Run) -> None:
    out = home / "contracts" / "mine.toml"
    assert run("contract", "new", "other", "--from-curl", CURL, "--out", str(out)).code == 0
    assert tomllib.loads(out.read_text(encoding="utf-8"))["provider"] == "other"


def test_a_provider_that_is_shipped_is_told(home: Path, run: Run) -> None:
    assert (
        "forbear contract add replicate"
        in run("contract", "new", "replicate", "--from-curl", CURL).out
    )


def test_a_write_that_may_be_a_job_says_what_is_missing(home: Path, run: Run) -> None:
    ran = run("contract", "new", "other", "--from-curl", CURL)
    assert "call export, drafted from a curl line" in ran.out
    assert "--status-answer FILE" in ran.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["other"], "contract new other --from-curl -"),
        (["a/b", "--from-curl", CURL], "no name that a contract can have"),
        (["other", "--from-curl", CURL, "--action", "a b"], "no name"),
        (["other", "--from-curl", "wget x"], "The curl line: the line does not begin with curl"),
        (["other", "--from-curl", CURL, "--answer", "not-there"], "The answer not-there: is not"),
        (["other", "--from-curl", CURL, "--answer", "."], "The answer .: is a folder"),
        (["other", "--from-curl", "-", "--answer", "-"], "Only one thing"),
        (["other", *["--from-curl", CURL] * 3], "once more"),
    ],
)
def test_wrong_usage_is_told_with_its_fix(run: Run, arguments: list[str], told: str) -> None:
    refused = run("contract", "new", *arguments)
    assert refused.code == 2
    assert told in refused.err
    assert KEY not in refused.err


# --- draft ----------------------------------------------------------------------------------


def recorded(path: Path) -> Path:
    """A recording with one job in it, as a browser saves it."""

    def entry(method: str, url: str, answer: Any) -> dict[str, Any]:
        headers = [{"name": "Authorization", "value": f"Bearer {KEY}"}]
        content = {"mimeType": "application/json", "text": json.dumps(answer)}
        request = {"method": method, "url": url, "headers": headers}
        return {"request": request, "response": {"status": 200, "content": content}}

    url = "https://api.shop.example/v2/exports"
    looks = [entry("GET", f"{url}/exp_7", {"id": "exp_7", "state": word}) for word in ("on", "off")]
    entries = [entry("POST", url, {"id": "exp_7"}), *looks, entry("GET", f"{url}?page=2", {})]
    path.write_text(json.dumps({"log": {"entries": entries}}), encoding="utf-8")
    return path


def test_a_recording_becomes_a_job_whose_words_are_listed(home: Path, run: Run) -> None:
    ran = run("contract", "draft", "--har", str(recorded(home / "session.har")))
    assert ran.code == 0, ran.err
    path = home / "contracts" / "shop.toml"
    assert f"Wrote {path}: job export, drafted from a recording with 2 looks" in ran.out
    assert 'seen in the answers, in this order: "on", "off"' in ran.out
    assert "1 other requests of the recording were left out." in ran.out
    assert KEY not in ran.out + path.read_text(encoding="utf-8")
    checked = run("contract", "check", str(path))
    assert "jobs.export.succeeded: has no words" in checked.out


OPENAPI = """\
openapi: 3.0.0
info: {title: "Bad \\u202ename"}
servers: [{url: "https://api.shop.example"}]
paths:
  /orders:
    get: {operationId: listOrders, summary: "All orders", responses: {}}
    post: {responses: {}}
"""


def test_operations_are_listed_found_by_a_word_and_named_in_the_next_command(
    home: Path, run: Run
) -> None:
    source = home / "api.yaml"
    source.write_text(OPENAPI, encoding="utf-8")
    listed = run("contract", "draft", "--openapi", str(source))
    assert listed.code == 0
    assert "Bad \\u202ename: 2 operations" in listed.out
    assert "  listOrders  GET /orders" in listed.out
    assert "  POST /orders" in listed.out
    assert f"--openapi {source} --name shop --operation listOrders" in listed.out
    found = run("contract", "draft", "--openapi", str(source), "--find", "POST")
    assert "listOrders" not in found.out
    assert "--operation 'POST /orders'" in found.out
    none = run("contract", "draft", "--openapi", str(source), "--find", "nothing")
    assert "No operation has the word 'nothing'." in none.out
    made = run("contract", "draft", "--openapi", str(source), "--operation", "listOrders")
    assert "call orders, drafted from the document api.yaml" in made.out
    assert run("contract", "check", str(home / "contracts" / "shop.toml")).code == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "Name one source"),
        (["--openapi", "x", "--har", "y"], "Name one source"),
        (["--openapi", "not-there"], "The document not-there: is not there"),
        (["--har", "not-there"], "The recording not-there: is not there"),
        (["--har", "api.yaml"], "The recording api.yaml: the body is no JSON"),
        (["--openapi", "api.yaml", "--operation", "listOrder"], "Near: listOrders"),
        (["--openapi", "api.yaml", "--name", "a b"], "no name that a contract can have"),
        (
            ["--openapi", "api.yaml", "--operation", "listOrders", "--name", "exp"],
            "is there already",
        ),
    ],
)
def test_a_source_that_cannot_be_used_is_told_with_its_fix(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    (home / "api.yaml").write_text(OPENAPI, encoding="utf-8")
    monkeypatch.chdir(home)
    refused = run("contract", "draft", *arguments)
    assert refused.code == 2
    assert told in refused.err
