"""A body is whole, or it is a named fault; and it is never larger than its cap."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forbear.server.decoding import BodyFault, Decoder


def raw_deflate(data: bytes) -> bytes:
    engine = zlib.compressobj(wbits=-15)
    return engine.compress(data) + engine.flush()


CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "Deflate": zlib.compress,
}


def decoded(coding: str, data: bytes, step: int, max_bytes: int = 1_000_000) -> bytes:
    decoder = Decoder(coding, max_bytes)
    for at in range(0, len(data), step):
        decoder.feed(data[at : at + step])
    return decoder.finish()


@given(st.sampled_from(sorted(CODINGS)), st.binary(max_size=2_000), st.integers(1, 700))
def test_every_coding_gives_back_what_went_in(coding: str, content: bytes, step: int) -> None:
    assert decoded(coding, CODINGS[coding](content), step) == content


@given(st.binary(max_size=500), st.integers(1, 50))
def test_deflate_without_its_wrapper_is_read(content: bytes, step: int) -> None:
    assert decoded("deflate", raw_deflate(content), step) == content


@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(1, 50))
def test_gzip_of_several_members_is_one_body(one: bytes, two: bytes, step: int) -> None:
    assert decoded("gzip", gzip.compress(one) + gzip.compress(two), step) == one + two


@given(st.sampled_from(["gzip", "Deflate"]), st.binary(min_size=1, max_size=500), st.data())
def test_a_cut_anywhere_is_truncated_and_never_a_body(
    coding: str, content: bytes, data: st.DataObject
) -> None:
    whole = CODINGS[coding](content)
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(BodyFault) as caught:
        decoded(coding, whole[:cut], 64)
    assert caught.value.fault == "truncated_body"


def test_a_bomb_stops_at_the_decoded_cap_in_bounded_memory() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(BodyFault) as caught:
            decoded("gzip", bomb, 65_536, max_bytes=1_000_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.fault == "body_too_large"
    assert peak < 5_000_000


def test_exactly_the_cap_is_allowed_and_one_more_is_not() -> None:
    for coding in ("", "gzip"):
        assert decoded(coding, CODINGS[coding](b"x" * 1_000), 64, max_bytes=1_000) == b"x" * 1_000
        with pytest.raises(BodyFault):
            decoded(coding, CODINGS[coding](b"x" * 1_001), 64, max_bytes=1_000)


def test_compressed_emptiness_without_end_is_capped_too() -> None:
    decoder = Decoder("gzip", 1_000)
    for _ in range(60):
        decoder.feed(gzip.compress(b"") * 50)
    with pytest.raises(BodyFault) as caught:
        decoder.feed(gzip.compress(b"") * 1_000)
    assert caught.value.fault == "body_too_large"


@pytest.mark.parametrize(
    ("coding", "data"),
    [
        ("br", b"x"),
        ("gzip, gzip", b"x"),
        ("gzip", b"{}"),
        ("gzip", gzip.compress(b"{}", mtime=0) + b"garbage"),
        ("deflate", zlib.compress(b"{}") + b"garbage"),
    ],
    ids=["unknown", "twice", "plain", "gzip and more", "deflate and more"],
)
def test_what_is_not_the_stated_coding_is_malformed(coding: str, data: bytes) -> None:
    with pytest.raises(BodyFault) as caught:
        decoded(coding, data, 64)
    assert caught.value.fault == "malformed"
