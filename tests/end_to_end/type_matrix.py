"""Values of every built-in type, and of types that somebody made: the ends of their ranges and everything that needs quoting."""

from __future__ import annotations

from psycopg import sql

_SPECIAL_FLOATS = ["NaN", "Infinity", "-Infinity", "-0", "0"]
_TEXTS = [
    "",
    " ",
    "NULL",
    "\\N",
    "\\.",
    "'single' \"double\" \\back\\slash",
    "tab\t line\n return\r vertical\v form\f \b",
    "{,}()[]",
    "é ß 中文 😀 \u2028 e\u0301",
]

BUILT_IN: dict[str, list[str]] = {
    "boolean": ["true", "false"],
    "smallint": ["-32768", "32767", "0"],
    "integer": ["-2147483648", "2147483647"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "real": [*_SPECIAL_FLOATS, "-3.4028235e38", "3.4028235e38", "1e-45", "0.1"],
    "float8": [*_SPECIAL_FLOATS, "-1.7976931348623157e308", "1.7976931348623157e308", "5e-324", "0.1"],
    "numeric": ["NaN", "Infinity", "-Infinity", "0", "0.000", "-1.50", "9" * 131072, "0." + "0" * 16382 + "1"],
    "numeric(10,2)": ["NaN", "-99999999.99", "99999999.99", "1"],
    "numeric(3,-2)": ["99900", "-100"],
    "numeric(5,10)": ["0.0000099999"],
    "money": ["-92233720368547758.08", "92233720368547758.07"],
    "text": _TEXTS,
    "varchar": _TEXTS,
    "varchar(3)": ["", "中文😀", "'\"\\"],
    "char(5)": ["", "a", " b", "\\", "中文😀"],
    "bpchar": [*_TEXTS, "a  ", "long"],
    '"char"': ["", "a", "\\377", "\\"],
    "name": ["", "n" * 63, 'quoted "name" isn\'t'],
    "refcursor": ["", "cursor"],
    "bytea": ["", r"\x00", r"\x000a0d095c22277fff"],
    "bit(3)": ["000", "101"],
    '"bit"': ["", "1", "101"],
    "bit varying": ["", "1", "10" * 100],
    "date": ["4714-11-24 BC", "5874897-12-31", "-infinity", "infinity", "0001-01-01", "2024-02-29"],
    "time": ["00:00:00", "24:00:00", "23:59:59.999999"],
    "time(3)": ["12:34:56.789"],
    "timetz": ["00:00:00+15:59", "24:00:00-15:59", "12:00:00.000001+00"],
    "timestamp": ["4714-11-24 00:00:00 BC", "294276-12-31 23:59:59.999999", "-infinity", "infinity", "0044-03-15 BC"],
    "timestamp(0)": ["2026-01-31 09:15:00"],
    "timestamptz": ["4714-11-24 00:00:00+00 BC", "294276-12-31 23:59:59.999999Z", "-infinity", "infinity", "1900-01-01 00:00+01"],
    "interval": ["-178000000 years", "178000000 years", "1 mon -2 days +00:00:00.000001", "0", "-infinity", "infinity"],
    "interval day to second(3)": ["-1 days +02:03:04.005"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "json": ['{"a" :  1, "a": [2,\n3]}', "null", '"\\u0000 \\ud83d\\ude00 \\" \\\\"', "{}", "[]", "1e400"],
    "jsonb": ['{"big": 9007199254740993, "exact": 0.10000000000000000000001}', "null", '"\\u00e9\\t\\"\\\\"', "{}", "[]", "[[]]"],
    "jsonpath": ["$", '$."a b"[*] ? (@.x > 1 && @.y == "q\\"")'],
    "xml": ["", '<a b="1">é\'&lt;\n</a>'],
    "inet": ["0.0.0.0/0", "255.255.255.255", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/1", "::ffff:10.0.0.1"],
    "cidr": ["0.0.0.0/0", "10.1.0.0/16", "::/0", "2001:db8::/32"],
    "macaddr": ["00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"],
    "macaddr8": ["00:00:00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff:ff:ff"],
    "point": ["(-0,1e308)", "(NaN,Infinity)", "(0.1,-Infinity)"],
    "line": ["{1,-2,0.1}", "{0,1,0}"],
    "lseg": ["[(0,0),(1e-300,-1)]"],
    "box": ["(1,1),(-1,-1)", "(Infinity,NaN),(0,0)"],
    "path": ["[(0,0),(1,1),(2,0)]", "((0,0),(1,1),(2,0))"],
    "polygon": ["((0,0),(1,1),(2,0))", "((0,0))"],
    "circle": ["<(0,0),1e300>", "<(-1.5,2),0>"],
    "tsvector": ["", "'a b':1A,16383 'it''s':2 'ü'", "'\\\\'"],
    "tsquery": ["", "'a b' & !( 'c':*AB | 'd' <-> 'it''s' )"],
    "pg_lsn": ["0/0", "FFFFFFFF/FFFFFFFF"],
    "pg_snapshot": ["10:20:10,14,15", "1:1:"],
    "txid_snapshot": ["10:20:10,14,15"],
    "oid": ["0", "4294967295"],
    "xid": ["0", "4294967295"],
    "xid8": ["0", "18446744073709551615"],
    "cid": ["4294967295"],
    "tid": ["(0,0)", "(4294967295,65535)"],
    "int2vector": ["", "-32768 0 32767"],
    "oidvector": ["", "0 4294967295"],
    "aclitem": ["=r/postgres", "postgres=arwdDxt/postgres"],
    "regclass": ["-", "pg_class"],
    "regproc": ["-", "now"],
    "regprocedure": ["-", "length(text)"],
    "regoper": ["0", "||/"],
    "regoperator": ["0", "+(integer,integer)"],
    "regtype": ["-", "integer", "text[]"],
    "regrole": ["-", "postgres"],
    "regnamespace": ["-", "pg_catalog"],
    "regconfig": ["-", "english"],
    "regdictionary": ["-", "simple"],
    "regcollation": ["-", '"C"'],
    "int4range": ["empty", "(,)", "[-2147483648,2147483647)", "(,5]"],
    "int8range": ["empty", "(,)", "[-9223372036854775808,9223372036854775807)"],
    "numrange": ["empty", "(,)", "(-Infinity,NaN]", "[1.50,1.500]"],
    "daterange": ["empty", "[-infinity,infinity]", "[4714-11-24 BC,)"],
    "tsrange": ["empty", '("2026-01-31 00:00:00",infinity]'],
    "tstzrange": ["empty", '["0044-03-15 12:00:00+00 BC",)'],
    "int4multirange": ["{}", "{(,)}", "{[1,3),[5,7)}"],
    "int8multirange": ["{}", "{(,1),[9223372036854775806,)}"],
    "nummultirange": ["{}", "{[-Infinity,0.10],(1,NaN)}"],
    "datemultirange": ["{}", "{[2024-01-01,2024-02-01),[2025-01-01,)}"],
    "tsmultirange": ["{}", '{["2026-01-31 00:00:00",infinity)}'],
    "tstzmultirange": ["{}", '{(,"2026-01-31 00:00:00+00")}'],
}
"""Each type as it is spelled in a definition. Every one gets NULL, arrays, empty arrays and arrays of arrays besides."""

MADE_TYPES = """
CREATE TYPE public.mood AS ENUM ('happy', 'it''s "so, so"', '');
CREATE TYPE public.pair AS (a integer, b text);
CREATE TYPE public.nested AS (p public.pair, many public.pair[], m public.mood);
CREATE DOMAIN public.small AS integer CHECK (VALUE < 10);
CREATE DOMAIN public.short AS varchar(5) CHECK (length(VALUE) < 5);
CREATE TYPE public.floats AS RANGE (subtype = float8);
"""
MADE: dict[str, list[str]] = {
    "public.mood": ["happy", 'it\'s "so, so"', ""],
    "public.pair": ["(,)", '(1,"")', r'(-7,"x,""y""\\ é")'],
    "public.nested": [r'("(1,""a b"")","{""(2,\\""c\\"")"",NULL}",happy)', "(,,)"],
    "public.small": ["9", "-2147483648"],
    "public.short": ["", "'\"\\"],
    "public.floats": ["empty", "[-Infinity,NaN]"],
}

EXTENSIONS: dict[str, dict[str, list[str]]] = {
    "hstore": {"public.hstore": ["", '"a b"=>NULL, "q\\"\\\\"=>"", "é"=>"1"']},
    "citext": {"public.citext": _TEXTS},
    "ltree": {"public.ltree": ["", "Top.Science_1"], "public.lquery": ["*.a|b{1,2}.!c"]},
    "cube": {"public.cube": ["(1,2,3)", "(0),(-1.5)"]},
    "vector": {"public.vector(3)": ["[1,-2.5,0]"], "public.halfvec(2)": ["[1,65504]"], "public.sparsevec(5)": ["{1:1,3:2}/5"]},
}

WITHOUT_INPUT = {
    "gtsvector",
    "pg_node_tree",
    "pg_ndistinct",
    "pg_dependencies",
    "pg_mcv_list",
    "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary",
}
"""Built-in types of which nobody can write a value."""


def definition(table: str, types: dict[str, list[str]], key: str) -> str:
    columns = ", ".join(f"c{n} {name}, a{n} {name}[]" for n, name in enumerate(types))
    return f"CREATE TABLE {table} (id integer {key}, {columns})"


def rows(types: dict[str, list[str]]) -> list[sql.Composed]:
    """As lists of expressions, without the id: one of NULLs, then as many as the type with the most values needs."""
    count = max(map(len, types.values()))
    value_rows = [[_value_and_array(name, values, n) for name, values in types.items()] for n in range(count)]
    nulls = [sql.SQL("NULL, NULL").format() for _ in types]
    return [sql.SQL(", ").join(row) for row in (nulls, *value_rows)]


def _value_and_array(type_name: str, values: list[str], n: int) -> sql.Composed:
    """The n-th value, beginning again behind the last; and an array of another shape for each n."""
    typed = [sql.SQL(f"{{}}::{type_name}").format(value) for value in values]
    value, null = typed[n % len(values)], sql.SQL(f"NULL::{type_name}").format()
    every, two = sql.SQL(", ").join(typed), (value, null)
    array = (
        sql.SQL("ARRAY[{}]").format(every),
        sql.SQL(f"ARRAY[]::{type_name}[]").format(),
        sql.SQL("ARRAY[[{}, {}], [{}, {}]]").format(*two, *reversed(two)),
        sql.SQL("ARRAY[[[{}]], [[{}]]]").format(*two),
    )[n % 4]
    return sql.SQL("{}, {}").format(value, array)
