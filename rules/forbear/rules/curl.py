"""A pasted curl line: the words as a shell reads them, the options as curl reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from getopt import GetoptError, gnu_getopt
from urllib.parse import quote_plus

from forbear.rules.exchanges import Sent, Unusable, sent

LONGEST = 100_000
"""Characters of a line that is read."""

# --- the words ------------------------------------------------------------------------------

_PIECE = re.compile(
    r"(?P<blank>(?:\\\r?\n|\s)+)"
    r"|'(?P<plain>[^']*)'"
    r"|\$'(?P<ansi>(?:[^'\\]|\\.)*)'"
    r'|\$?"(?P<double>(?:[^"\\]|\\.)*)"'
    r"|\\(?P<escaped>.)"
    r"|(?P<operator>[|;<>&]+)"
    r"|(?P<bare>[^\s'\"\\|;<>&$]+|\$)",
    re.DOTALL,
)
_IN_DOUBLE = re.compile(r'\\(?:(["\\$`])|\r?\n)')
_ANSI = re.compile(
    r"\\(?:x(?P<hex>[0-9A-Fa-f]{1,2})|u(?P<four>[0-9A-Fa-f]{1,4})|U(?P<eight>[0-9A-Fa-f]{1,8})"
    r"|(?P<octal>[0-7]{1,3})|(?P<one>.))",
    re.DOTALL,
)
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPES = {**_CONTROLS, "e": "\x1b", "E": "\x1b"}


def words(line: str) -> list[str]:
    """The words of the first command of a line.

    Quotes, `$'…'`, backslashes and continued lines are those of a POSIX shell; nothing is expanded,
    and a line break that nothing continues is a blank. What stands behind `|`, `;`, `>` and `<` is
    left out.

    Raises Unusable for a quote that nothing closes and for an `&` in the middle of a word.
    """
    found: list[str] = []
    within = False
    at = 0
    while at < len(line):
        piece = _PIECE.match(line, at)
        if piece is None:
            raise Unusable("the line opens a quote that nothing closes; paste the whole line")
        at = piece.end()
        if piece["blank"] is not None:
            within = False
        elif piece["operator"] is not None:
            if piece["operator"] == "&" and within and at < len(line) and not line[at].isspace():
                raise Unusable(
                    "a shell ends the command at the & of the address; put quotes around it"
                )
            # `2>file`: the digit belongs to the operator.
            if within and found[-1].isdecimal() and piece["operator"][0] in "<>":
                found.pop()
            break
        else:
            if not within:
                found.append("")
            within = True
            found[-1] += _text(piece)
    return found


def _text(piece: re.Match[str]) -> str:
    if (ansi := piece["ansi"]) is not None:
        return _ANSI.sub(_unescaped, ansi)
    if (double := piece["double"]) is not None:
        return _IN_DOUBLE.sub(lambda found: found[1] or "", double)
    return next(text for name in ("plain", "escaped", "bare") if (text := piece[name]) is not None)


def _unescaped(found: re.Match[str]) -> str:
    for name, base in (("hex", 16), ("four", 16), ("eight", 16), ("octal", 8)):
        if (digits := found[name]) is not None:
            code = int(digits, base)
            return chr(code) if code <= 0x10FFFF else "\ufffd"
    return _ESCAPES.get(found["one"], found["one"])


# --- the options ----------------------------------------------------------------------------

_SHORT = "E:K:C:b:c:d:D:F:P:H:h:m:o:U:Q:r:e:X:Y:y:z:t:T:u:A:w:x:aqfGgIi0kj46lLMnNZ#pJORSs231BvV"
_NAMES = {
    "b": "cookie", "d": "data", "F": "form", "H": "header", "X": "request", "u": "user",
    "G": "get", "I": "head", "T": "upload-file", "K": "config", "E": "cert", "x": "proxy",
    "k": "insecure", "n": "netrc",
}  # fmt: skip
_TAKE_A_VALUE = """abstract-unix-socket alt-svc aws-sigv4 cacert capath cert cert-type
    ciphers config connect-timeout connect-to continue-at cookie cookie-jar create-file-mode
    crlfile curves data
    data-ascii data-binary data-raw data-urlencode delegation dns-interface dns-ipv4-addr
    dns-ipv6-addr dns-servers doh-url dump-header egd-file engine etag-compare etag-save
    expect100-timeout form form-string happy-eyeballs-timeout-ms header help hostpubmd5
    hostpubsha256 hsts interface json keepalive-time key key-type krb libcurl limit-rate local-port
    login-options max-filesize max-redirs max-time netrc-file noproxy oauth2-bearer output
    output-dir parallel-max pass pinnedpubkey preproxy proto proto-default proto-redir proxy
    proxy-cacert proxy-capath proxy-cert proxy-cert-type proxy-ciphers proxy-crlfile proxy-header
    proxy-key proxy-key-type proxy-pass proxy-pinnedpubkey proxy-service-name proxy-user proxy1.0
    pubkey random-file range rate referer request request-target resolve retry retry-delay
    retry-max-time sasl-authzid service-name socks4 socks4a socks5 socks5-hostname speed-limit
    speed-time stderr time-cond tls-max tls13-ciphers tlsauthtype tlspassword tlsuser trace
    trace-ascii unix-socket upload-file url url-query user user-agent write-out"""
_TAKE_NONE = """anyauth append basic ca-native cert-status compressed create-dirs digest disable
    fail fail-early fail-with-body false-start follow form-escape get globoff head http0.9 http1.0
    http1.1 http2 http2-prior-knowledge http3 http3-only ignore-content-length include insecure ipv4
    ipv6 junk-session-cookies location location-trusted manual negotiate netrc netrc-optional next
    no-alpn no-buffer no-clobber no-keepalive no-npn no-progress-meter no-sessionid ntlm parallel
    parallel-immediate path-as-is post301 post302 post303 progress-bar proxy-anyauth proxy-basic
    proxy-digest proxy-insecure proxy-negotiate proxy-ntlm proxytunnel raw remote-header-name
    remote-name remote-name-all remote-time remove-on-error retry-all-errors retry-connrefused
    sasl-ir show-error silent ssl ssl-no-revoke ssl-reqd sslv2 sslv3 styled-output tcp-fastopen
    tcp-nodelay tlsv1 tlsv1.0 tlsv1.1 tlsv1.2 tlsv1.3 tr-encoding trace-ids trace-time verbose
    version xattr"""
_WITH_VALUE, _WITHOUT_VALUE = _TAKE_A_VALUE.split(), _TAKE_NONE.split()
_LONG = [*(f"{name}=" for name in _WITH_VALUE), *_WITHOUT_VALUE]

_IMPOSSIBLE = {
    "next": "it makes several requests; paste one of them",
    "upload-file": "it sends a file, which no contract can",
    "config": "options in a file are not read; write them into the line",
    "aws-sigv4": "it signs the request, which Forbear cannot do yet",
    "digest": "it answers a challenge (digest), which Forbear cannot do",
    "ntlm": "it answers a challenge (NTLM), which Forbear cannot do",
    "negotiate": "it answers a challenge (Negotiate), which Forbear cannot do",
    "cert": "it shows a client certificate, which Forbear cannot do yet",
    "key": "it shows a client certificate, which Forbear cannot do yet",
}
_REMARKS = {
    "proxy": "the proxy of the line is left out; [proxy] in config.toml names one",
    "insecure": "-k is left out: Forbear always checks certificates",
    "netrc": "what .netrc holds is not read; write auth",
}


def parse(line: str) -> Sent:
    """The request that a curl line sends.

    Raises Unusable, with the reason and the fix, for what is no curl line and for what no contract
    can send. The message never repeats a value of the line.
    """
    if len(line) > LONGEST:
        raise Unusable(f"the line has more than {LONGEST:,} characters; shorten its body")
    if re.search(r"\^\s*\n|\^\"", line):
        raise Unusable("the line is made for cmd.exe; copy it as cURL (bash)")
    command = words(line)
    while command and (command[0] in ("$", "%") or re.fullmatch(r"[A-Za-z_]\w*=.*", command[0])):
        command = command[1:]
    if not command or command[0].rpartition("/")[2] not in ("curl", "curl.exe"):
        raise Unusable("the line does not begin with curl; paste the whole line in single quotes")
    try:
        options, rest = gnu_getopt(command[1:], _SHORT, _LONG)
    except GetoptError as error:
        raise Unusable(f"{_plain(error)}; leave that option out") from None
    return _Line(rest).read(options)


def _plain(error: GetoptError) -> str:
    # The message itself repeats the word, which may hold a secret glued to its option.
    if error.opt in (*_WITH_VALUE, *_WITHOUT_VALUE) or len(error.opt) == 1:
        dashes = "-" if len(error.opt) == 1 else "--"
        told = "needs a value" if "requires" in error.msg else "takes no value or is not known"
        return f"the option {dashes}{error.opt} {told}"
    return "an option of the line is none that curl 8 has"


class _Line:
    """One curl command while its options are read."""

    def __init__(self, addresses: list[str]) -> None:
        self.addresses = list(addresses)
        self.method: str | None = None
        self.headers: list[tuple[str, str]] = []
        self.data: list[str] | None = None
        self.json = ""
        self.fields: list[tuple[str, str]] = []
        self.query: list[str] = []
        self.login: str | None = None
        self.get = self.head = False
        self.remarks: list[str] = []

    def read(self, options: list[tuple[str, str]]) -> Sent:
        for option, value in options:
            name = option.lstrip("-")
            self._option(_NAMES.get(name, name) if len(name) == 1 else name, value)
        if len(self.addresses) != 1:
            raise Unusable(
                "the line has no address"
                if not self.addresses
                else "the line has several addresses; paste one request, and quote its values"
            )
        body = "&".join(self.data or ()) + self.json if self._has_data() else None
        query = "&".join(self.query)
        if self.get and body is not None:
            query, body = "&".join(filter(None, (query, body))), None
        method = self.method or self._usual_method(body)
        return sent(
            method,
            self.addresses[0],
            self.headers,
            body,
            fields=self.fields or None,
            query=query,
            login=self.login,
            remarks=self.remarks,
        )

    def _has_data(self) -> bool:
        return self.data is not None or bool(self.json)

    def _usual_method(self, body: str | None) -> str:
        if self.head:
            return "HEAD"
        return "GET" if body is None and not self.fields else "POST"

    def _option(self, name: str, value: str) -> None:
        if name in _IMPOSSIBLE:
            raise Unusable(f"--{name}: {_IMPOSSIBLE[name]}")
        if name in _REMARKS:
            self.remarks.append(_REMARKS[name])
        match name:
            case "url":
                self.addresses.append(value)
            case "request":
                self.method = value.upper()
            case "header":
                self.headers += self._header(value)
            case "cookie":
                if "=" not in value:
                    raise Unusable("-b: cookies in a file are not read; write -b 'name=value'")
                self.headers.append(("Cookie", value))
            case "user":
                self.login = value
            case "oauth2-bearer":
                self.headers.append(("Authorization", f"Bearer {value}"))
            case "data" | "data-ascii" | "data-binary" | "data-raw" | "json" | "data-urlencode":
                self._datum(name, value)
            case "form" | "form-string":
                self.fields.append(self._field(name, value))
            case "url-query":
                self.query.append(_encoded(value.removeprefix("+"), "--url-query"))
            case "get":
                self.get = True
            case "head":
                self.head = True
            case _:
                pass  # how curl connects and what it prints

    def _header(self, value: str) -> Iterator[tuple[str, str]]:
        if value.startswith("@"):
            raise Unusable("-H: headers in a file are not read; write them into the line")
        name, colon, text = value.partition(":")
        if colon and text.strip():
            yield name.strip(), text.strip()

    def _datum(self, name: str, value: str) -> None:
        if name == "data-urlencode":
            value = _encoded(value, "--data-urlencode")
        elif value.startswith("@") and name != "data-raw":
            raise Unusable(f"--{name}: a body in a file is not read; write the body into the line")
        if name == "json":
            self.json += value
            self.headers.append(("Content-Type", "application/json"))
        else:
            self.data = [*(self.data or ()), value]

    def _field(self, option: str, value: str) -> tuple[str, str]:
        name, equals, text = value.partition("=")
        if not equals:
            raise Unusable("-F: a field is NAME=VALUE")
        if option == "form" and text[:1] in ("@", "<"):
            raise Unusable("-F: it sends a file, which no contract can")
        return name, text.split(";type=")[0] if option == "form" else text


def _encoded(value: str, option: str) -> str:
    """`content`, `=content` and `name=content`, percent-encoded as curl does."""
    name, equals, text = value.partition("=")
    if not equals:
        if "@" in value:
            raise Unusable(f"{option}: what a file holds is not read; write it into the line")
        return quote_plus(value)
    return f"{name}={quote_plus(text)}" if name else quote_plus(text)
