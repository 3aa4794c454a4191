"""What an agent reads of a provider: written out where it hides, and without signed addresses."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import pytest
from tests.rules.test_inert import HIDDEN
from tests.tools.records import record

from forbear.tools.answers import full
from forbear.tools.untrusted import inert, told_tree

SIGNED = "https://x.example/a?sig=SECRET"
SHOWN = "https://x.example/a?[redacted]"


@pytest.mark.requirement("C05")
@pytest.mark.parametrize("name", HIDDEN)
def test_the_list_of_what_hides_is_the_one_of_the_rules(name: str) -> None:
    assert inert(f"a{HIDDEN[name]}b") == f"a\\u{ord(HIDDEN[name]):04x}b"


@pytest.mark.requirement("A08")
def test_a_record_shows_of_a_signed_address_the_place_alone() -> None:
    whole = record()
    operation = replace(
        whole.operation,
        provider_job=SIGNED,
        provider_state=SIGNED,
        provider_request_id=SIGNED,
        http_status=200,
        http_at=1,
        result={"inline": [{SIGNED: SIGNED}], "preview": f"a {SIGNED}"},
        failure={"message": f"no {SIGNED}"},
    )
    told = full(replace(whole, operation=operation))
    assert "SECRET" not in repr(told)
    assert told["provider_job"]["id"] == SHOWN
    assert told["result"] == {"inline": [{SHOWN: SHOWN}], "preview": f"a {SHOWN}"}


@pytest.mark.requirement("C05")
def test_nothing_of_a_tree_hides() -> None:
    hidden = "".join(HIDDEN.values())
    safe = repr(told_tree({hidden: [hidden, (hidden, 1, None)]}))
    assert {unicodedata.category(character) for character in safe}.isdisjoint({"Cc", "Cf", "Cs"})
