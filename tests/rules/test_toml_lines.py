"""Lines of keys: what a contract error points at."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forbear.rules.toml_lines import Path, dotted, key_lines


def paths_of(value: object, base: Path = ()) -> set[Path]:
    found: set[Path] = {base} if base else set()
    if isinstance(value, dict):
        for key, inner in value.items():
            found |= paths_of(inner, (*base, str(key)))
    if isinstance(value, list):
        for index, inner in enumerate(value):
            found |= paths_of(inner, (*base, index))
    return found


SAMPLE = """\
# a comment = "with [brackets]"
contract = 1
a.b . "c.d" = 1

[jobs.export]   # [not.a.header]
text = \"\"\"
fake = 1 \\\"\"\" still inside
[fake.header]\"\"\"\"
literal = '''
x = 'y' ''
'''
rows = [
  ["a", "b"],   # first
  { at = "/x",
    unit = "s" } ]
inline = { one.two = 1, "three" = [1,
 2] }
[[rules]]
http = 404
[[rules]]
http = 5
match.x = 'a'
[rules.deep]
z = 1
[[rules.inner]]
q = 1
"""


def test_every_key_of_a_file_has_the_line_where_it_stands() -> None:
    sample = SAMPLE.replace(",\n    unit", ", unit").replace("[1,\n 2]", "[1,2]")
    lines = key_lines(sample)
    assert set(lines) == paths_of(tomllib.loads(sample))
    rows = sample.split("\n")
    for path, line in lines.items():
        last = path[-1]
        if isinstance(last, str):
            assert last in rows[line - 1], (path, line)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("contract",), 2),
        (("a", "b", "c.d"), 3),
        (("jobs",), 5),
        (("jobs", "export", "literal"), 9),
        (("jobs", "export", "rows", 0), 13),
        (("jobs", "export", "rows", 1, "unit"), 15),
        (("jobs", "export", "inline", "three", 1), 17),
        (("rules", 0), 18),
        (("rules", 1, "http"), 21),
        (("rules", 1, "deep", "z"), 24),
        (("rules", 1, "inner", 0, "q"), 26),
    ],
)
def test_a_key_is_found_behind_strings_that_look_like_toml(path: Path, line: int) -> None:
    assert key_lines(SAMPLE)[path] == line


def test_line_ends_of_windows_count_once() -> None:
    assert key_lines("a = 1\r\n\r\nb = '''\r\n'''\r\nc = 1\r\n")[("c",)] == 5


def test_a_path_is_written_as_a_person_writes_it() -> None:
    assert dotted(("jobs", "export", "rules", 0, "http")) == "jobs.export.rules[0].http"


KEYS = st.sampled_from(["a", "b-1", "c_d", '"q.r"', "'s t'", '"\\u0041"'])
SCALARS = st.sampled_from(
    ["1", "-1.5", "true", "2026-11-30", "2026-11-30T10:00:00Z", '"x # y"', "'[z]'", '"""\n\n"""']
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[" + ",\n ".join(items) + "]"),
        st.dictionaries(KEYS, inner, max_size=3).map(
            lambda table: "{ " + ", ".join(f"{key} = {value}" for key, value in table.items()) + "}"
        ),
    ),
    max_leaves=6,
)


@given(
    st.dictionaries(KEYS, VALUES, max_size=4),
    st.dictionaries(st.sampled_from(["t", "u.v", '"w.x"']), VALUES, max_size=3),
    st.lists(VALUES, max_size=3),
)
def test_no_valid_file_has_a_key_without_a_line(
    top: dict[str, str], tables: dict[str, str], rows: list[str]
) -> None:
    text = "".join(f"{key} = {value}\n" for key, value in top.items())
    text += "".join(f"[{name}]\nk = {value} # comment\n" for name, value in tables.items())
    text += "".join(f"[[rows.list]]\nk = {value}\n" for value in rows)
    assert set(key_lines(text)) == paths_of(tomllib.loads(text))
