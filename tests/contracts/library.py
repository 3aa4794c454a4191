"""The contracts that come with Forbear, each loaded as a user's file loads it: through `use`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from forbear.rules.contract import Contract
from forbear.rules.contract_file import parse
from forbear.server.providers import asked_of_account, shipped, shipped_names

FOLDER = Path(__file__).parents[2] / "contracts" / "forbear" / "contracts"
NAMES = shipped_names()
HOST = "host.example"


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.toml").read_text(encoding="utf-8")


@cache
def contract_of(name: str) -> Contract:
    """The contract, with a value for everything that it asks of the account."""
    asked = asked_of_account(text_of(name))
    account = "".join(f'{key} = "{HOST if "host" in key else "acme"}"\n' for key in asked)
    text = f'contract = 1\nuse = "{name}"\n[account]\nid = "main"\n{account}'
    found = parse(text, f"{name}.toml", shipped)
    assert isinstance(found, Contract), "\n".join(str(error) for error in found)
    return found
