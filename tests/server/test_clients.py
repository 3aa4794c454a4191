"""Our entry in files that clients and their users write: put in, taken out, the rest untouched."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forbear.server.clients.jsonc import Jsonc
from forbear.server.clients.known import CLIENTS, Client, Server
from forbear.server.clients.registering import find, register, unregister
from forbear.server.clients.splices import Unfit
from forbear.server.clients.toml_table import Toml

SERVER = Server(
    "/opt/for bear/bin/forbear", ("serve",), {"FORBEAR_HOME": "/srv/hö me"}, ("EXP_TOKEN",)
)
ENTRY = {"command": "/bin/forbear", "args": ["serve"], "env": {"A": "ä\\ \x7f"}}

# --- files as people have them --------------------------------------------------------------

_SPACE = st.text(" \t\n", max_size=4)
_COMMENT = st.sampled_from(["", "", "// a {remark\n", "/* one, */", "/* of\n\n two } */", "//\n"])
_GAP = st.tuples(_SPACE, _COMMENT, _SPACE).map("".join)
_KEY = st.text(max_size=6) | st.sampled_from(["a", "mcpServer", "inputs", 'q"', "\\"])
_SCALAR = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.text(max_size=8)),
    st.floats(allow_nan=False, allow_infinity=False),
).map(lambda value: json.dumps(value, ensure_ascii=False))


def _listed(draw: st.DrawFn, items: list[str]) -> str:
    text = ",".join(draw(_GAP) + item + draw(_GAP) for item in items)
    trailing = "," + draw(_GAP) if draw(st.booleans()) and items else ""
    return (text or draw(_GAP)) + trailing


def _joined(opening: str, closing: str, parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    @st.composite
    def whole(draw: st.DrawFn) -> str:
        return opening + _listed(draw, draw(st.lists(parts, max_size=3))) + closing

    return whole()


def _members(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    @st.composite
    def member(draw: st.DrawFn) -> str:
        key = json.dumps(draw(_KEY.filter(lambda key: key not in ("servers", "forbear"))))
        return key + draw(_GAP) + ":" + draw(_GAP) + draw(values)

    return member()


_VALUE = st.recursive(
    _SCALAR,
    lambda inner: _joined("[", "]", inner) | _joined("{", "}", _members(inner)),
    max_leaves=6,
)


@st.composite
def jsonc(draw: st.DrawFn) -> str:
    """A file with comments: with servers, with none, or with nothing at all."""
    if draw(st.booleans()) and draw(st.booleans()):
        return draw(st.sampled_from(["", "\ufeff"])) + draw(_GAP)
    members = [draw(_members(_VALUE)) for _ in range(draw(st.integers(0, 2)))]
    if draw(st.booleans()):
        servers = draw(_joined("{", "}", _members(_VALUE)))
        at = draw(st.integers(0, len(members)))
        members.insert(at, '"servers"' + draw(_GAP) + ":" + draw(_GAP) + servers)
    whole = draw(_GAP) + "{" + _listed(draw, members) + "}" + draw(_GAP)
    mark = draw(st.sampled_from(["", "\ufeff"]))
    return mark + (whole.replace("\n", "\r\n") if draw(st.booleans()) else whole)


_TOML = st.lists(
    st.sampled_from(
        [
            *("# a remark\n", "\n", "\n\n", "  \n"),
            *("[mcp_servers.other]\ncommand = 'x' # why\n", "[mcp_servers]\n"),
            *("[mcp_servers.'a.b'.env]\nK = \"v\"\n", "[other.table]\nx = [\n 1,\n # two\n]\n"),
            *("[[list]]\nx = '''\n[mcp_servers.forbear]\n'''\n", "[profiles.work]\nmodel='m'\n"),
        ]
    ),
    unique=True,
).map("".join)


@st.composite
def toml(draw: st.DrawFn) -> str:
    top = draw(
        st.sampled_from(["", "model = 'gpt'\n", "# top\nmcp_servers.dotted.command = 'c'\n"])
    )
    text = top + draw(_TOML)
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:  # [mcp_servers] after its children
        text = top
    text = text[:-1] if draw(st.booleans()) else text
    return text.replace("\n", "\r\n") if draw(st.booleans()) else text


@given(jsonc())
def test_what_is_put_into_json_and_taken_out_leaves_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    _round_trip(CLIENTS["vscode"], text, tmp_path_factory.mktemp("vscode"))


@given(toml())
def test_what_is_put_into_toml_and_taken_out_leaves_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    _round_trip(CLIENTS["codex"], text, tmp_path_factory.mktemp("codex"))


def _round_trip(client: Client, text: str, folder: Path) -> None:
    file = folder / "file"
    file.write_bytes(text.encode())
    before = client.notation.read(text)
    done = register(client, file, SERVER, folder / "home")
    assert done.changed
    assert find(client, file) == client.entry(SERVER)
    after = dict(client.notation.read(file.read_bytes().decode()))
    servers = dict(after.pop(client.table))
    del servers["forbear"]
    assert (servers or before.get(client.table, {})) == before.get(client.table, {})
    assert after == {key: value for key, value in before.items() if key != client.table}
    assert done.copy is not None
    assert done.copy.read_bytes() == text.encode()
    assert unregister(client, file, SERVER, folder / "home") == file
    assert file.read_bytes() == text.encode()
    assert sorted(one.name for one in folder.iterdir()) == ["file", "home"]
    assert list((folder / "home").iterdir()) == []


@given(jsonc(), st.booleans())
def test_an_entry_is_found_by_what_it_is_where_its_text_was_changed(text: str, empty: bool) -> None:
    notation = Jsonc(comments=True)
    put = notation.put(text, "servers", "forbear", ENTRY)
    rest = notation.without(put.text, "servers", "forbear", empty=empty)
    told = notation.read(rest)
    assert {"servers": {}, **told} == {"servers": {}, **notation.read(text)}
    assert "servers" in told or empty
    # Comments stay: all of them, in their order.
    assert [c for c in text if c in "/#"] == [c for c in rest if c in "/#"]


@given(toml())
def test_a_table_is_found_by_what_it_is_where_its_text_was_changed(text: str) -> None:
    notation = Toml()
    put = notation.put(text, "mcp_servers", "forbear", ENTRY)
    changed = put.text.replace('"serve"', '"serve", "--no-worker"')
    assert notation.read(changed)["mcp_servers"]["forbear"]["args"] == ["serve", "--no-worker"]
    rest = notation.without(changed, "mcp_servers", "forbear", empty=True)
    left = dict(notation.read(text))
    if not left.get("mcp_servers"):
        left.pop("mcp_servers", None)
    told = dict(notation.read(rest))
    if not told.get("mcp_servers"):
        told.pop("mcp_servers", None)
    assert told == left
    assert text.count("#") == rest.count("#")


# --- how it looks ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            '{\n    // mine\n    "servers": { // all\n        "a": {}, // of a\n    },\n}\n',
            '{\n    // mine\n    "servers": { // all\n        "forbear": {\n            "x": []\n'
            '        },\n        "a": {}, // of a\n    },\n}\n',
            id="comments stay where they were",
        ),
        pytest.param(
            '{\r\n\t"inputs": []\r\n}',
            '{\r\n\t"servers": {\r\n\t\t"forbear": {\r\n\t\t\t"x": []\r\n\t\t}\r\n\t},'
            '\r\n\t"inputs": []\r\n}',
            id="line ends and indentation are those of the file",
        ),
        pytest.param(
            '{"servers":{"a":1},"b":2}',
            '{"servers":{"forbear": {"x": []}, "a":1},"b":2}',
            id="one line stays one line",
        ),
        pytest.param(
            "{}\n",
            '{\n  "servers": {\n    "forbear": {\n      "x": []\n    }\n  }\n}\n',
            id="an empty object",
        ),
    ],
)
def test_an_entry_looks_like_what_is_around_it(text: str, expected: str) -> None:
    put = Jsonc(comments=True).put(text, "servers", "forbear", {"x": []})
    assert put.text == expected


@pytest.mark.parametrize(
    ("client", "text", "why"),
    [
        ("cursor", "{", "is not JSON with comments (line 1)"),
        ("cursor", "[]", "is no JSON object"),
        ("cursor", '{"mcpServers": []}', "has a mcpServers that is no table of servers"),
        ("cursor", '{"mcpServers": {}, "mcpServers": {}}', "names 'mcpServers' twice"),
        ("cursor", "[" * 300, "is nested deeper than 200 levels"),
        ("cursor", f'{{"a": {"9" * 5000}}}', "has a number that is too long in line 1"),
        ("claude-desktop", "{\n// a\n}", "has a comment in line 2, which its client refuses"),
        ("claude-desktop", '{"a": 1,\n}', "has a comma too many in line 1"),
        ("codex", "a = ", "is not TOML (Invalid value (at end of document))"),
        ("codex", "mcp_servers = 1", "has a mcp_servers that is no table of servers"),
        ("codex", "mcp_servers = { a = {} }", "is written in a way"),
        ("codex", b"a = '\xff'", "is not UTF-8 text"),
    ],
)
def test_a_file_that_cannot_be_edited_safely_is_left_alone(
    tmp_path: Path, client: str, text: str | bytes, why: str
) -> None:
    file = tmp_path / "file"
    content = text if isinstance(text, bytes) else text.encode()
    file.write_bytes(content)
    with pytest.raises(Unfit) as caught:
        register(CLIENTS[client], file, SERVER, tmp_path / "home")
    assert str(caught.value).startswith(why)
    assert file.read_bytes() == content
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file"]


@pytest.mark.skipif(sys.platform == "win32", reason="pipes are files of POSIX systems")
def test_a_device_or_pipe_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    """Read, it would block without end; replaced, /dev/null is a file from then on."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path(os.devnull)):
        with pytest.raises(Unfit, match="is no regular file"):
            register(CLIENTS["cursor"], path, SERVER, tmp_path / "home")
    assert pipe.is_fifo()
    assert Path(os.devnull).is_char_device()


# --- places ---------------------------------------------------------------------------------

_WINDOWS = {"APPDATA": r"C:\Users\a\Roam", "LOCALAPPDATA": r"C:\Users\a\Local"}
_HOMES = {"linux": "/home/a", "darwin": "/Users/a", "win32": r"C:\Users\a"}
_DESKTOP = "claude_desktop_config.json"


@pytest.mark.parametrize(
    ("client", "platform", "environment", "first"),
    [
        ("claude-code", "linux", {}, "/home/a/.claude.json"),
        ("claude-code", "win32", _WINDOWS, r"C:\Users\a\.claude.json"),
        ("claude-code", "linux", {"CLAUDE_CONFIG_DIR": "/c"}, "/c/.claude.json"),
        ("claude-desktop", "linux", {}, f"/home/a/.config/Claude/{_DESKTOP}"),
        (
            *("claude-desktop", "darwin", {}),
            f"/Users/a/Library/Application Support/Claude/{_DESKTOP}",
        ),
        ("claude-desktop", "win32", _WINDOWS, rf"C:\Users\a\Local\Claude-Data\claude*\{_DESKTOP}"),
        ("cursor", "linux", {}, "/home/a/.cursor/mcp.json"),
        ("cursor", "win32", _WINDOWS, r"C:\Users\a\.cursor\mcp.json"),
        ("vscode", "linux", {"XDG_CONFIG_HOME": "/x"}, "/x/Code/User/mcp.json"),
        ("vscode", "darwin", {}, "/Users/a/Library/Application Support/Code/User/mcp.json"),
        ("vscode", "win32", _WINDOWS, r"C:\Users\a\Roam\Code\User\mcp.json"),
        ("vscode", "win32", {}, r"C:\Users\a\AppData\Roaming\Code\User\mcp.json"),
        ("codex", "darwin", {}, "/Users/a/.codex/config.toml"),
        ("codex", "linux", {"CODEX_HOME": "/c"}, "/c/config.toml"),
    ],
)
def test_the_file_of_a_client_is_where_the_platform_has_it(
    client: str, platform: str, environment: dict[str, str], first: str
) -> None:
    places = CLIENTS[client].places(platform, environment, _HOMES[platform])
    assert str(places[0]) == first


def test_the_installer_of_claude_desktop_for_windows_has_the_usual_place() -> None:
    places = CLIENTS["claude-desktop"].places("win32", _WINDOWS, _HOMES["win32"])
    assert str(places[-1]) == rf"C:\Users\a\Roam\Claude\{_DESKTOP}"


# --- entries --------------------------------------------------------------------------------


def test_an_entry_names_what_contracts_need_and_never_a_value() -> None:
    made = {id: client.entry(SERVER) for id, client in CLIENTS.items()}
    start = {"command": "/opt/for bear/bin/forbear", "args": ["serve"]}
    home = {"FORBEAR_HOME": "/srv/hö me"}
    assert made == {
        "claude-code": {"type": "stdio", **start, "env": home},
        "claude-desktop": {**start, "env": {**home, "EXP_TOKEN": ""}},
        "cursor": {**start, "env": {**home, "EXP_TOKEN": "${env:EXP_TOKEN}"}},
        "vscode": {"type": "stdio", **start, "env": home},
        "codex": {**start, "env_vars": ["EXP_TOKEN"], "env": home},
    }
