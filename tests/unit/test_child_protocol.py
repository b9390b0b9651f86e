"""A child that decoded a hostile image may say anything; the parent's parsers let only the protocol through."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import FailureCode
from contracts.images import ImageFormat, ImageLimits, TransformParams, VariantName
from worker.child_protocol import (
    FRAME_HEAD_BYTES,
    ChildConfig,
    Done,
    FrameKind,
    ProtocolError,
    done_body,
    frame_head,
    job_head,
    parse_done,
    parse_frame_head,
    parse_params,
    parse_rejection,
    parse_variant,
    variant_body,
)
from worker.variants import Transformed, Variant


def test_everything_said_is_understood() -> None:
    data = b"webp bytes"
    variant = Variant(
        name=VariantName.OPTIMIZED, data=data, sha256=hashlib.sha256(data).hexdigest(), width_px=7, height_px=9
    )
    assert parse_variant(bytearray(variant_body(variant))) == variant
    facts = Transformed(image_format=ImageFormat.GIF, width_px=1, height_px=2, cpu_s=0.25, rss_bytes_peak=3)
    done = Done(transformed=facts, rss_bytes=4)
    assert parse_done(bytearray(done_body(done))) == done
    assert parse_rejection(bytearray(b"invalid_image")) is FailureCode.INVALID_IMAGE
    config = ChildConfig(limits=ImageLimits(side_px_max=7), nice=3, parent_pid=9)
    assert ChildConfig.from_json(config.to_json()) == config


def test_a_job_is_its_parameters_and_the_length_of_its_source() -> None:
    params = TransformParams(webp_effort=2)
    head = job_head(params, 300_000)
    kind, params_bytes = parse_frame_head(head[:FRAME_HEAD_BYTES], body_bytes_max=1_000)
    body, rest = head[FRAME_HEAD_BYTES : FRAME_HEAD_BYTES + params_bytes], head[FRAME_HEAD_BYTES + params_bytes :]
    assert (kind, parse_params(body)) == (FrameKind.PARAMS, params)
    assert parse_frame_head(rest, body_bytes_max=300_000) == (FrameKind.SOURCE, 300_000)


@pytest.mark.parametrize("head", [b"\x00\x00\x00\x00\x00", b"\xff\x00\x00\x00\x00", frame_head(FrameKind.DONE, 101)])
def test_an_unknown_or_too_long_frame_is_refused(head: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_frame_head(head, body_bytes_max=100)


@pytest.mark.parametrize("parse", [parse_variant, parse_done, parse_rejection])
@given(st.binary(max_size=100) | st.sampled_from([b"{}", b"[]", b"null", b'{"image_format": "bmp"}']))
def test_no_body_makes_a_parser_raise_anything_else(parse: object, body: bytes) -> None:
    assert callable(parse)
    try:
        parse(bytearray(body))
    except ProtocolError:
        return
