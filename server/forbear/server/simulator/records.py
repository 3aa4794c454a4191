"""What the simulator keeps of each effect, and the values that answers say about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forbear.rules.contract import Action, Contract, Job, Source
from forbear.rules.facts import Facts, typed
from forbear.rules.ports import Json
from forbear.rules.values import is_present, text_of
from forbear.server.simulator.drafts import Base, value_in
from forbear.server.simulator.routes import PLACE, addresses, handles

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(frozen=True, slots=True)
class Record:
    """A job, or what a call wrote or read."""

    number: int
    action: str
    arguments: Mapping[str, Any]
    account: Mapping[str, str]
    ref: str | None
    key: str | None
    values: Mapping[str, Json]
    """What answers say of it, by the contract's own names: `id`, `take.x`, `result.x`."""
    made_at: int
    """Epoch ms."""

    @property
    def facts(self) -> Facts:
        """What templates may name of it, as Forbear knows it."""
        texts = {name: text_of(value) or "" for name, value in self.values.items()}
        return Facts(
            arguments=self.arguments,
            account=self.account,
            ref=self.ref or "",
            key=self.key,
            take={k.removeprefix("take."): v for k, v in texts.items() if k[:7] != "result."},
            result={k[7:]: v for k, v in texts.items() if k[:7] == "result."},
            submitted_at=self.made_at,
            terminal_seen=True,
        )


def values(
    written: Contract, copied: Contract, action: Action, number: int, sent: Facts
) -> dict[str, Json]:
    """The values of a new record: addresses lead here, ids look like those of the examples.

    `written` is the contract with its examples, `copied` the one that points here; `sent` is what
    the request said. What later requests do not carry is left to the answers.
    """
    group = "jobs" if isinstance(action, Job) else "calls"
    found: dict[str, Json] = {}
    own, carried = addresses(action), handles(action)
    for name, source in _taken(action).items():
        if name in own:
            found[name] = f"{copied.base_url}/{PLACE}/{number}/{name}"
        elif name == "id" or name in carried:
            sample = _sample(written, f"{group}.{action.name}", source)
            sample = 0 if sample is None and source in _integers(action) else sample
            found[name] = _alike(sample, name.rpartition(".")[2], number)
    return found | _chosen(action, sent)


def _chosen(action: Action, sent: Facts) -> dict[str, Json]:
    """The values that whoever asks has chosen: a lookup finds them where our reference is."""
    if action.lookup is None:
        return {}
    ours = {at: one.template for at, one in action.lookup.match.terms if one.template is not None}
    chosen = {
        _name(name): typed(ours[source], sent)
        for name, source in action.lookup.take
        if source in ours
    }
    return {name: value for name, value in chosen.items() if is_present(value)}


def _integers(action: Action) -> frozenset[Source]:
    """Places where a contract requires a whole number."""
    required = [*action.send.require, *action.send.require_any]
    if isinstance(action, Job):
        required += [*action.success.require, *action.success.require_any]
    return frozenset(one.at for one in required if one.type == "integer")


def _taken(action: Action) -> dict[str, Source]:
    """Where each value that later requests may name is read."""
    taken = {_name(name): source for name, source in action.send.take}
    if isinstance(action, Job):
        taken |= {_name(name): source for name, source in action.status.take}
        taken |= {f"result.{name}": source for name, source in action.success.take}
    return taken


def _name(taken: str) -> str:
    return taken if taken == "id" else f"take.{taken}"


def _sample(written: Contract, action: str, source: Source) -> Json:
    """What an example of an action has at a place."""
    for example in written.examples:
        if example.on == action or example.on.startswith(f"{action}."):
            value = value_in(Base.of(example), source)
            if is_present(value):
                return value
    return None


def _alike(sample: Json, name: str, number: int) -> Json:
    """Another value of the same kind."""
    if isinstance(sample, int) and not isinstance(sample, bool):
        return 1_000 + number
    text = text_of(sample) or ""
    if text.isdecimal():
        return str(1_000 + number)
    if _UUID.fullmatch(text):
        return f"00000000-0000-4000-8000-{number:012d}"
    way, slash, _ = text.rpartition("/")
    return f"{way}{slash}sim-{name}-{number}" if "://" not in text else f"sim-{name}-{number}"
