"""The functions of Spark that texts of users reach; every other name is refused.

Left out on purpose: functions that run code or take names from text (`reflect`, `java_method`,
`identifier`), tell of the machine or its configuration, read files or other schemas, or make a
value as large as an argument says or as a whole table is (`sequence`, `repeat`, `collect_list`,
`listagg`): it would have to fit into the memory that routing needs too.
"""

from typing import Final

_AGGREGATES: Final = """
    any any_value approx_count_distinct approx_percentile avg bit_and bit_or bit_xor bool_and
    bool_or corr count count_if covar_pop covar_samp every first first_value grouping
    grouping_id kurtosis last last_value max max_by mean min min_by percentile_approx regr_avgx
    regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy skewness
    some std stddev stddev_pop stddev_samp sum try_avg try_sum var_pop var_samp variance
"""
_WINDOWS: Final = "cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number"
_CONDITIONS: Final = """
    coalesce equal_null greatest if ifnull isnan isnotnull isnull least nanvl not nullif
    nullifzero nvl nvl2 zeroifnull
"""
_NUMBERS: Final = """
    abs acos acosh asin asinh atan atan2 atanh bin bit_count bround cbrt ceil ceiling conv cos
    cosh cot csc degrees div e exp expm1 factorial floor getbit hex hypot ln log log10 log1p
    log2 mod negative pi pmod positive pow power radians rand randn random rint round sec
    shiftleft shiftright sign signum sin sinh sqrt tan tanh try_add try_divide try_mod
    try_multiply try_subtract unhex width_bucket uniform
"""
_TEXTS: Final = """
    ascii base64 bit_length btrim char char_length character_length chr concat concat_ws
    contains crc32 decode encode endswith find_in_set format_number format_string initcap instr
    is_valid_utf8 lcase left len length levenshtein locate lower ltrim luhn_check
    make_valid_utf8 mask md5 octet_length overlay position printf quote replace reverse right
    rtrim sentences sha sha1 sha2 soundex split_part startswith substr substring substring_index
    to_binary to_char to_number to_varchar translate trim try_to_binary try_to_number
    try_validate_utf8 ucase unbase64 upper xxhash64 hash parse_url try_parse_url url_decode
    url_encode try_url_decode validate_utf8
"""
PATTERN_FUNCTIONS: Final = frozenset(
    (
        "regexp",
        "regexp_count",
        "regexp_extract",
        "regexp_extract_all",
        "regexp_instr",
        "regexp_like",
        "regexp_replace",
        "regexp_substr",
        "rlike",
        "split",
    )
)
"""Their second argument is a regular expression, written out as a literal."""
_TIMES: Final = """
    add_months convert_timezone curdate current_date current_timestamp current_timezone date
    date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc dateadd
    datediff datepart day dayname dayofmonth dayofweek dayofyear extract from_unixtime
    from_utc_timestamp hour last_day localtimestamp make_date make_dt_interval make_interval
    make_timestamp make_ym_interval minute month monthname months_between next_day now quarter
    second session_window timestamp timestamp_micros timestamp_millis timestamp_seconds timestampadd
    timestampdiff to_date to_timestamp to_unix_timestamp to_utc_timestamp trunc
    try_make_timestamp try_to_date try_to_timestamp unix_date unix_micros unix_millis
    unix_seconds unix_timestamp weekday weekofyear window window_time year
"""
_NESTED: Final = """
    aggregate array array_append array_compact array_contains array_distinct array_except
    array_insert array_intersect array_join array_max array_min array_position array_prepend
    array_remove array_size array_sort array_union arrays_overlap arrays_zip cardinality
    element_at exists filter flatten forall get map map_concat map_contains_key map_entries
    map_filter map_from_arrays map_from_entries map_keys map_values map_zip_with named_struct
    reduce shuffle size slice sort_array str_to_map struct transform transform_keys
    transform_values try_element_at zip_with
"""
_JSON: Final = """
    from_json get_json_object is_variant_null json_array_length json_object_keys parse_json
    schema_of_json schema_of_variant to_json to_variant_object
    try_parse_json try_variant_get typeof variant_get
"""
_CASTS: Final = "bigint binary boolean decimal double float int smallint string tinyint"
_OTHERS: Final = "monotonically_increasing_id uuid"
GENERATORS: Final = frozenset(
    (
        "explode",
        "explode_outer",
        "inline",
        "inline_outer",
        "json_tuple",
        "posexplode",
        "posexplode_outer",
        "stack",
        "variant_explode",
        "variant_explode_outer",
    )
)
"""Give rows for a row; also in FROM and LATERAL VIEW."""
TABLE_FUNCTIONS: Final = GENERATORS | {"range"}

ALLOWED: Final = frozenset(
    word
    for words in (
        _AGGREGATES,
        _WINDOWS,
        _CONDITIONS,
        _NUMBERS,
        _TEXTS,
        _TIMES,
        _NESTED,
        _JSON,
        _CASTS,
        _OTHERS,
    )
    for word in words.split()
)

_SYNTAX: Final = {"between"}
"""That Spark's parser makes of an operator."""
_OF_RULES: Final = """
    lpad mqlake_decode mqlake_layouts raise_error repeat rpad shiftrightunsigned
    theta_sketch_agg theta_sketch_estimate
"""
"""The compiler of rules bounds what they make."""

QUERY_FUNCTIONS: Final = ALLOWED | TABLE_FUNCTIONS | PATTERN_FUNCTIONS | _SYNTAX
RULE_FUNCTIONS: Final = QUERY_FUNCTIONS | set(_OF_RULES.split())
"""That the SQL of rules is made of. A version in force keeps its SQL, so names are only added."""

HINTS: Final = {
    "sequence": "join with range(n) instead",
    "collect_list": "select the rows themselves, or use first, max_by or approx_percentile",
    "collect_set": "use SELECT DISTINCT or approx_count_distinct",
    "array_agg": "select the rows themselves",
    "listagg": "select the rows themselves",
    "string_agg": "select the rows themselves",
    "percentile": "use approx_percentile",
    "percentile_cont": "use approx_percentile",
    "median": "use approx_percentile(x, 0.5)",
    "mode": "use GROUP BY and count(*)",
    "schema_of_variant_agg": "SELECT DISTINCT schema_of_variant(payload)",
    "version": "SELECT time travel is: FROM messages VERSION AS OF 12",
}
"""Advice in place of some that are left out."""
