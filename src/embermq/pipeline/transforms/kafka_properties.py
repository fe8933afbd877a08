"""The MQTT 5 property block as native expressions: a walk over its bytes [MQTT 5.0, 2.2.2].

Only queries that keep what a message says need it (message store, lake); dispatch carries the block as it is.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

# One step of the walk reads the property at byte `s.at` (from 1) of `block` in three goes, so that each thing is worked
# out once: its identifier and the length of its first text, then that of its second one, then what it says. A block
# that cannot be read leaves `error`. A length that is past the end counts as one that leads past the end.
_U16 = "coalesce(cast(conv(hex(substring(block, {at}, 2)), 16, 10) as int), 70000)"
_FOUND = f"""named_struct('id', hex(substring(block, s.at, 1)), 'first', {_U16.format(at="s.at + 1")},
    'number', hex(substring(block, s.at + 1, 4)))"""
_PARTS = f"""named_struct('id', f.id, 'number', f.number, 'bytes', substring(block, s.at + 3, f.first),
    'text', cast(substring(block, s.at + 3, f.first) as string),
    'value', cast(substring(block, s.at + 5 + f.first, {_U16.format(at="s.at + 3 + f.first")}) as string),
    'next', CASE f.id WHEN '01' THEN s.at + 2 WHEN '02' THEN s.at + 5
        WHEN '26' THEN s.at + 5 + f.first + {_U16.format(at="s.at + 3 + f.first")}
        ELSE s.at + 3 + f.first END)"""
_PROBLEM = """CASE
    WHEN p.id NOT IN ('01', '02', '03', '08', '09', '26') THEN concat('property 0x', p.id, ' is not allowed')
    WHEN p.next > length(block) + 1 THEN concat('property 0x', p.id, ' ends after the block')
    WHEN p.id = '01' AND (s.indicator IS NOT NULL OR substring(p.number, 1, 2) NOT IN ('00', '01'))
        OR p.id = '02' AND s.expiry IS NOT NULL
        OR p.id = '03' AND (s.content_type IS NOT NULL OR NOT is_valid_utf8(p.text))
        OR p.id = '08' AND (s.response_topic IS NOT NULL OR NOT is_valid_utf8(p.text) OR p.text RLIKE '[+#]')
        OR p.id = '09' AND s.correlation IS NOT NULL
        OR p.id = '26' AND NOT (is_valid_utf8(p.text) AND is_valid_utf8(p.value))
    THEN concat('property 0x', p.id, ' is there twice or has a value that is not allowed') END"""
_EMPTY_PAIRS = "cast(array() as array<struct<name: string, value: string>>)"
_BEGIN = f"""named_struct('at', 1, 'indicator', cast(null as int), 'expiry', cast(null as bigint),
    'content_type', cast(null as string), 'response_topic', cast(null as string),
    'correlation', cast(null as binary), 'pairs', {_EMPTY_PAIRS}, 'error', cast(null as string))"""
_AFTER = f"""named_struct(
    'at', p.next,
    'indicator', CASE WHEN p.id = '01'
        THEN cast(conv(substring(p.number, 1, 2), 16, 10) as int) ELSE s.indicator END,
    'expiry', CASE WHEN p.id = '02' THEN cast(conv(p.number, 16, 10) as bigint) ELSE s.expiry END,
    'content_type', CASE WHEN p.id = '03' THEN p.text ELSE s.content_type END,
    'response_topic', CASE WHEN p.id = '08' THEN p.text ELSE s.response_topic END,
    'correlation', CASE WHEN p.id = '09' THEN p.bytes ELSE s.correlation END,
    'pairs', CASE WHEN p.id = '26'
        THEN concat(s.pairs, array(named_struct('name', p.text, 'value', p.value))) ELSE s.pairs END,
    'error', {_PROBLEM})"""
_STEP = f"""CASE WHEN s.error IS NOT NULL OR s.at > length(block) THEN s
    ELSE transform(transform(array({_FOUND}), f -> {_PARTS}), p -> {_AFTER})[0] END"""
_SHORTEST_PROPERTY = 2
_CONTINUED = 0x80
_LENGTH_BYTES_MAX = 4
_FIELD_BYTES_MAX = 1 << 30


def property_walk() -> Column:
    """Of column `block` (null for a record without properties): a struct (indicator, expiry, content_type,
    response_topic, correlation, pairs, error, at), null without a block."""
    steps = f"sequence(1, greatest(1, length(block) div {_SHORTEST_PROPERTY}))"
    return F.expr(f"CASE WHEN block IS NOT NULL THEN aggregate({steps}, {_BEGIN}, (s, i) -> {_STEP}) END")


def property_block(field: Column) -> Column:
    """The block of a header `p` without the length in front; null where that is not the length of the rest."""
    found: Column = F.lit(None).cast("binary")
    size = F.lit(0)
    is_continued = F.lit(True)
    for digits in range(1, _LENGTH_BYTES_MAX + 1):
        byte = F.conv(F.hex(F.substring(field, digits, 1)), 16, 10).cast("int")
        size = size + byte.bitwiseAND(F.lit(0x7F)) * (1 << 7 * (digits - 1))
        rest = F.substring(field, digits + 1, _FIELD_BYTES_MAX)
        fits = is_continued & (byte < _CONTINUED) & (F.octet_length(rest) == size)
        found = F.when(fits, rest).otherwise(found)
        is_continued = is_continued & (byte >= _CONTINUED)
    return found
