"""Values that Spark makes are no longer than the estimate by which queries are refused."""

from typing import NoReturn

import pytest
from pyspark.sql import SparkSession
from sqlglot import exp

from api.sql.dialect import DIALECT
from api.sql.lengths import Lengths
from tests.cases import case

pytestmark = [pytest.mark.promise, pytest.mark.spark]

TEXTS = r"""
hex('abc')
base64('abc')
quote('\'\'\'')
url_encode('äöü%%')
upper('ΐΐΐ')
initcap('ŉŉ')
lower('İİȺȺ')
translate('aaa', 'a', '😀')
mask('Aa1-', '😀', 'ä', '😀', '😀')
encode('abc', 'UTF-16')
encode('abc', 'UTF-32')
decode(X'FFFFFF', 'ISO-8859-1')
make_valid_utf8(CAST(X'FFFF' AS STRING))
replace('abab', 'ab', 'xyz')
replace('aa', 'a', 'bbb')
regexp_replace('abc', 'x*', '--')
regexp_replace('abc', '(b)', '$1$1$1')
overlay('abc', 'xyz', 2, 0)
concat_ws('--', array('', '', ''), 'a')
array_join(split(',,,', ','), '--', 'x')
array_join(array('a', null), ',', 'nothing')
format_string('%999s|%1$S|%1$s', 'ß')
format_number(1e300, 100)
bin(-1)
conv('-1', 10, 2)
sha2('a', 512)
uuid()
current_timezone()
date_format(current_timestamp(), 'EEEE MMMM zzzz VV xxx')
from_unixtime(0, 'EEEEMMMMzzzz')
to_char(X'FFFF', 'hex')
to_char(X'FFFF', 'base64')
to_char(12, '$999,999.99')
to_varchar(current_timestamp(), 'EEEE zzzz')
typeof(struct(1 AS a, 2 AS b))
schema_of_json('{"a":1}')
schema_of_variant(parse_json('{"a":[1]}'))
get_json_object('{"a": "\\u00e4"}', '$.a')
url_decode('%C3%A4')
aggregate(split('a,b,c', ','), '', (acc, x) -> concat(acc, x, '-'), acc -> concat(acc, acc))
CAST(1e300 AS STRING)
CAST(current_timestamp() AS STRING)
concat('a', 'b')
chr(8364)
soundex('Robert')
"""
NESTED = r"""
array('\u0001\u0001')
parse_json('[1,2,{}]')
to_variant_object(struct('a' AS name))
from_json('[{},{}]', 'array<struct<first int, second double>>')
from_json('{}', 'a int, b array<int>')
sentences('a. b. c!')
arrays_zip(array('a'), array('b', 'c'))
array_insert(array('a'), 50, 'b')
map_from_arrays(array(1, 2), array('a', 'b'))
map_concat(map(1, 'a'), map(2, 'b'))
array_union(array('a'), array('b'))
regexp_extract_all('abab', '(a)b', 1)
str_to_map('a:1,b:2', ',', ':')
transform(split('a,b', ','), x -> concat(x, x, '!'))
transform_values(map(1, 'a'), (k, v) -> concat(k, v, v))
zip_with(array('a', 'b'), array('c'), (x, y) -> struct(x AS left, y AS right))
map_zip_with(map(1, 'a'), map(2, 'b'), (k, x, y) -> array(x, y))
named_struct('some', 1, 'other', 'x')
flatten(array(array('a'), array('b')))
array_append(array('a'), 'b')
split('abc', '')
json_object_keys('{"a": 1, "b": 2}')
"""


def estimate(call: str) -> float:
    def fail(_node: object, problem: str, _hint: str) -> NoReturn:
        raise AssertionError(problem)

    (select,) = DIALECT.parse(f"SELECT {call}")
    assert isinstance(select, exp.Select)
    ((_, length),) = Lengths(fail).columns(select)
    return length.bytes


def test_no_value_is_longer_than_its_estimate(spark: SparkSession) -> None:
    calls = TEXTS.strip().splitlines()
    calls += [f"to_json({one})" for one in NESTED.strip().splitlines()]
    listed = ", ".join(f"octet_length({one}) AS c{number}" for number, one in enumerate(calls))
    (found,) = spark.sql(f"SELECT {listed}").collect()
    for call, length in zip(calls, found, strict=True):
        with case(f"{call} has {length} bytes"):
            assert length <= estimate(call)
