"""From the bytes of a response body to its content, under a cap and without silent loss."""

from __future__ import annotations

import zlib

_GZIP = b"\x1f\x8b"


class BodyFault(Exception):
    """A body that is not whole: `fault` is one of the fault words of `Reply`."""

    def __init__(self, fault: str, detail: str) -> None:
        super().__init__(detail)
        self.fault = fault
        self.detail = detail


class Decoder:
    """Undoes one content coding (RFC 9110, section 8.4) while the body arrives.

    Guarantees: never holds more than `max_bytes` of content and one input chunk; a compressed body
    without its end is `truncated_body`; input that only pretends to shrink is capped as well.
    """

    def __init__(self, coding: str, max_bytes: int) -> None:
        self._coding = coding.strip().lower().removeprefix("x-")
        if self._coding not in ("", "identity", "gzip", "deflate"):
            raise BodyFault("malformed", "the body has a content coding that was not asked for")
        self._max = max_bytes
        self._content = bytearray()
        self._taken = 0
        self._held = b""
        self._engine: zlib._Decompress | None = None

    @property
    def max_encoded(self) -> int:
        """Bytes on the wire that a body of `max_bytes` can need, stored blocks included."""
        return self._max + self._max // 100 + 65_536

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes; raises `BodyFault` at the first that cannot be accepted."""
        self._taken += len(chunk)
        if self._taken > self.max_encoded:
            raise BodyFault("body_too_large", f"the body exceeds {self._max} bytes")
        if self._coding in ("", "identity"):
            self._add(chunk)
        else:
            self._inflate(self._held + chunk)

    def finish(self) -> bytes:
        """The whole content; raises `BodyFault` if the coding's own end is missing."""
        ended = self._engine is None or self._engine.eof
        if self._held or not ended:
            raise BodyFault("truncated_body", "the compressed body ends in the middle")
        return bytes(self._content)

    def _inflate(self, data: bytes) -> None:
        self._held = b""
        while data:
            if self._engine is None:
                if len(data) < 2:
                    self._held = data
                    return
                self._engine = self._start(data)
            elif self._engine.eof:
                # RFC 1952, section 2.2: a gzip file may have several members.
                if self._coding != "gzip":
                    raise BodyFault("malformed", "bytes follow the end of the compressed body")
                self._engine = None
                continue
            try:
                self._add(self._engine.decompress(data, self._max - len(self._content) + 1))
            except zlib.error:
                raise BodyFault("malformed", "the compressed body cannot be read") from None
            data = self._engine.unconsumed_tail or self._engine.unused_data

    def _start(self, data: bytes) -> zlib._Decompress:
        if self._coding == "gzip":
            if not data.startswith(_GZIP):
                raise BodyFault("malformed", "the body is not gzip as its header says")
            return zlib.decompressobj(wbits=31)
        # RFC 9110, section 8.4.1.2: some senders leave the zlib wrapper away.
        wrapped = data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
        return zlib.decompressobj(wbits=15 if wrapped else -15)

    def _add(self, content: bytes) -> None:
        self._content += content
        if len(self._content) > self._max:
            raise BodyFault("body_too_large", f"the decoded body exceeds {self._max} bytes")
