#!/usr/bin/env python3
"""Writes the inputs in corpus/ that are made by hand: one for each thing that a parser has to expect, named after it. What
fuzzing found lies beside them. `seeds.py` writes all of them again; run it after a change here, or of a target's input.
The ELF files need gcc, those of idx nothing but Python."""
import gzip
import hashlib
import io
import json
import pathlib
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def put(target, name, data):
    path = HERE / "corpus" / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())


# ---- aggregate -------------------------------------------------------------------------------------------------------
def seeds_aggregate():
    token = bytes(range(16))
    text = lambda s, n: s.encode().ljust(n, b"\0")
    def order(kind=1, dtype=1, op=1, count=100, piece=64):
        return struct.pack("<4sIIIQQ", b"DDPO", kind, dtype, op, count, piece)
    def to(worker, data):
        return b"".join(bytes([worker, len(data[i:i + 255])]) + data[i:i + 255] for i in range(0, len(data), 255))
    hello = lambda world, rank, name: struct.pack("<4s16sII", b"DDPA", token, world, rank) + text(name, 128)
    put("aggregate", "hello", b"\0" + hello(3, 2, "communicator-1"))
    put("aggregate", "hello_rank", b"\0" + hello(3, 3, "x"))
    put("aggregate", "hello_no_end", b"\0" + hello(3, 1, "x" * 128))
    place = token + token + struct.pack("<I", 4711) + text("192.0.2.1", 64) + text("b", 128)
    put("aggregate", "place", b"\1" + place)
    put("aggregate", "place_port", b"\1" + place[:32] + struct.pack("<I", 70000) + place[36:])
    for name, o in (("order", order()), ("order_bye", order(2)), ("order_huge", order(count=1 << 60)), ("order_piece", order(piece=65)),
                    ("order_dtype", order(dtype=77))):
        put("aggregate", name, b"\2" + o)
    values = bytes(400)
    both = lambda a, b: to(0, a) + to(1, b)
    put("aggregate", "sums", b"\3" + both(order() + values, order() + values) + both(order(dtype=2, op=2, count=3, piece=2) + bytes(6), order(dtype=2, op=2, count=3, piece=2) + bytes(6)) + both(order(2), order(2)))
    put("aggregate", "differ", b"\3" + both(order(), order(count=101)))
    put("aggregate", "bye_and_sum", b"\3" + both(order(2), order() + values))
    put("aggregate", "gone", b"\3" + to(0, order() + values) + b"\1\0")
    put("aggregate", "ahead", b"\3" + to(0, order(count=10000) + bytes(8000)) + to(1, order(count=10000)))
    put("aggregate", "nonsense", b"\3" + to(1, bytes(range(32))))


# ---- safetensors -----------------------------------------------------------------------------------------------------
def safetensors(header, data=b""):
    text = header if isinstance(header, (bytes, str)) else json.dumps(header, separators=(",", ":"))
    text = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def w(shape="1", begin="0", end="4"):
    return '"w":{"dtype":"F32","shape":[%s],"data_offsets":[%s,%s]}' % (shape, begin, end)


def seeds_safetensors():
    real = {"__metadata__": {"format": "pt"}, "fc.weight": tensor("F32", [2, 3], 8, 32), "n": tensor("I64", [], 0, 8),
            "h": tensor("BF16", [2], 32, 36), "empty": tensor("F32", [0, 7], 36, 36)}
    put("safetensors", "real", safetensors(real, bytes(range(36))))
    sizes = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2, "U8": 1,
             "I8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1}
    header, at = {}, 0
    for name, size in sizes.items():
        header[name] = tensor(name, [1], at, at + size)
        at += size
    put("safetensors", "every_dtype", safetensors(header, bytes(at)))
    put("safetensors", "none", safetensors("{}"))
    put("safetensors", "padded", safetensors("{" + w() + "}   \t\r\n", bytes(4)))
    put("safetensors", "escapes", safetensors(
        '{"\\u0077\\u00fc\\u20AC\\ud83d\\ude00\\n\\"\\\\\\/\\b\\f\\r\\t":{"\\u0064type":"F\\u00332","shape":[1],"data_offsets":[0,4]}}',
        bytes(4)))
    put("safetensors", "utf8", safetensors('{"ü€😀":' + w()[4:] + "}", bytes(4)))
    put("safetensors", "empty_before_full", safetensors("{" + w() + ',"v":' + w("0", "0", "0")[4:] + ',"u":'
                                                        + w("0", "0", "0")[4:] + "}", bytes(4)))
    put("safetensors", "seventy_tensors",
        safetensors({f"t{i}": tensor("U8", [1], i, i + 1) for i in range(70)}, bytes(70)))
    bad = {
        "no_object": "[]", "nothing": "", "blank_first": " {}", "open": "{", "behind_the_end": "{}x", "nul_behind": b"{}\0",
        "no_colon": '{"w" 3}', "open_text": '{"w', "no_quotes": "{w:1}", "comma_at_the_end": '{"w":{},}', "number": '{"w":3}',
        "no_dtype": '{"w":{}}', "number_as_dtype": '{"w":{"dtype":7}}', "unknown_dtype": '{"w":{"dtype":"F12"}}',
        "long_dtype": '{"w":{"dtype":"' + "F" * 30 + '"}}', "no_shape": '{"w":{"dtype":"F32"}}',
        "shape_no_array": '{"w":{"shape":4}}', "no_offsets": '{"w":{"dtype":"F32","shape":[]}}',
        "one_offset": '{"w":{"data_offsets":[0]}}', "offsets_object": '{"w":{"data_offsets":{}}}',
        "three_offsets": '{"w":{"data_offsets":[0,1,2]}}', "offset_no_integer": "{" + w(end="4.0") + "}",
        "negative_offset": "{" + w(begin="-4") + "}", "wrong_way_round": "{" + w(begin="4", end="0") + "}",
        "past_the_end": "{" + w(end="8") + "}", "contradiction": "{" + w("2") + "}", "hole": "{" + w("0", "2", "2") + "}",
        "exponent": "{" + w("1e1") + "}", "leading_zero": "{" + w("01") + "}", "negative_shape": "{" + w("-1") + "}",
        "no_shape_number": "{" + w("x") + "}", "shape_no_comma": "{" + w("1 1") + "}", "minus_alone": "{" + w("-") + "}",
        "nine_dimensions": "{" + w(",".join("1" * 9)) + "}", "overflow": "{" + w("4294967296,4294967296", "0", "0") + "}",
        "number_too_large": "{" + w("99999999999999999999") + "}", "twice": "{" + w() + "," + w() + "}",
        "twice_escaped": "{" + w() + ',"\\u0077":' + w()[4:] + "}", "dtype_twice": '{"w":{"dtype":"F32","dtype":"F32"}}',
        "unknown_key": '{"w":{"strides":[1]}}', "unknown_long_key": '{"w":{"' + "s" * 60 + '":[1]}}',
        "entry_no_comma": '{"w":{"dtype":"F32" "shape":[]}}', "overlap": "{" + w() + ',"v":' + w()[4:] + "}",
        "metadata_array": '{"__metadata__":[]}', "metadata_number": '{"__metadata__":{"a":1}}',
        "metadata_key_twice": '{"__metadata__":{"a":"","\\u0061":""}}', "metadata_twice": '{"__metadata__":{},"__metadata__":{}}',
        "metadata_open": '{"__metadata__":{"a":"b"', "wrong_escape": '{"\\x":1}', "escape_at_the_end": '{"\\', "short_unit": '{"\\u00',
        "unit_no_hex": '{"\\u00g0":1}', "upper_hex": '{"\\u00AF":1}', "nul_escaped": '{"\\u0000":1}', "high_alone": '{"\\ud83d":1}',
        "high_and_letter": '{"\\ud83d\\u0041":1}', "low_alone": '{"\\ude00":1}', "control": '{"a\nb":1}', "nul_in_name": b'{"a\0b":1}',
        "overlong": b'{"\xc0\x80":1}', "overlong_three": b'{"\xe0\x80\x80":1}', "surrogate": b'{"\xed\xa0\x80":1}',
        "beyond_unicode": b'{"\xf4\x90\x80\x80":1}', "lead_alone": b'{"\xff":1}', "cut_character": b'{"\xe2\x82":1}',
        "cut_at_the_end": b'{"\xe2\x82', "control_in_message": '{"a\\n\\u001b[2J\\u007f":3}',
    }
    for name, header in bad.items():
        put("safetensors", "bad_" + name, safetensors(header, bytes(4)))
    put("safetensors", "bad_bytes_behind", safetensors("{" + w() + "}", bytes(5)))
    put("safetensors", "bad_overlap_of_two", safetensors("{" + w() + ',"v":' + w("1", "2", "6")[4:] + "}", bytes(6)))
    put("safetensors", "bad_hole_between", safetensors("{" + w() + ',"v":' + w("1", "5", "9")[4:] + "}", bytes(9)))
    put("safetensors", "bad_short", b"1234567")
    put("safetensors", "bad_length", struct.pack("<Q", 2**63) + b"{}")
    put("safetensors", "bad_length_over_limit", struct.pack("<Q", 100000001) + b"{}")


# ---- shards ----------------------------------------------------------------------------------------------------------
def seeds_shards():
    def shard(*pieces, dtype="F32"):
        header, at = {}, 0
        for name, count in pieces:
            header[name] = tensor(dtype, [count], at, at + 4 * count)
            at += 4 * count
        return safetensors(header, bytes(at))

    def both(name, a, b):
        put("shards", name, struct.pack("<H", len(a)) + a + b)

    first = shard(("a.weight.exp_avg:0", 4), ("b.exp_avg:0", 1))
    second = shard(("a.weight.exp_avg:4", 2), ("b.exp_avg:1", 3))
    both("real", first, second)
    both("other_order", second, first)
    both("none", shard(), shard())
    both("one_has_all", shard(("b.exp_avg:0", 4)), shard())
    both("two_states", shard(("b.exp_avg:0", 4), ("b.exp_avg_sq:0", 2)), shard(("b.exp_avg_sq:2", 2)))
    both("bad_twice", first, first)
    both("bad_hole", first, shard(("a.weight.exp_avg:5", 1), ("b.exp_avg:1", 3)))
    both("bad_short", first, shard(("a.weight.exp_avg:4", 2), ("b.exp_avg:1", 2)))
    both("bad_long", first, shard(("a.weight.exp_avg:4", 3), ("b.exp_avg:1", 3)))
    both("bad_no_number", first, shard(("a.weight.exp_avg", 2)))
    both("bad_number", first, shard(("a.weight.exp_avg:4x", 2)))
    both("bad_long_number", first, shard(("a.weight.exp_avg:" + "9" * 19, 2)))
    both("bad_no_parameter", shard(("c.exp_avg:0", 4)), shard())
    both("bad_no_dot", shard(("b:0", 4)), shard())
    both("bad_dtype", shard(("b.exp_avg:0", 4), dtype="I32"), shard())
    both("bad_file", first, b"no safetensors")


# ---- manifest --------------------------------------------------------------------------------------------------------
def seeds_manifest():
    facts = {"bytes": 100, "sha256": "ab" * 32}
    good = {"format": "ddpengine checkpoint", "version": 1, "step": 10, "epoch": 1, "cursor": 3, "seed": "18446744073709551615",
            "world_size": 2, "bucket_size": 26214400, "first_bucket_size": 1048576, "batch_size": 4, "accumulate": 1,
            "micro_steps": 10, "hook_version": 1, "config_hash": "cd" * 32, "model": "gpt2", "finished": True, "hook": "int8",
            "files": {"model.safetensors": facts, "optimizer.safetensors": facts, "hook.safetensors": facts}}

    def manifest(name, drop=(), **change):
        m = {k: v for k, v in {**good, **change}.items() if k not in drop}
        m["checksum"] = hashlib.sha256(json.dumps(m, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()
        put("manifest", name, json.dumps(m, indent=2))

    manifest("real")
    manifest("without_hook", hook="", hook_version=0,
             files={k: facts for k in ("model.safetensors", "optimizer.safetensors")})
    manifest("earlier_version", drop=("hook", "hook_version", "micro_steps"))
    manifest("unfinished", finished=False)
    best = {f"{k}.{f}": v for k in ("plateau", "best", "early_stopping")
            for f, v in (("value", 1 / 3), ("found", 1), ("step", 7), ("since", 2), ("of", 1 << 62))}
    history = {**best, "plateau.cooldown": 1, "plateau.drops": 2, "plateau.scale": 0.01, "averaged": 10, "evaluation": 7, "evaluation_due": 1}
    manifest("history", history=history, files={**good["files"], "ema.safetensors": facts})
    for name, change in (("real", {"best.value": 1}), ("text", {"best.step": "7"}), ("negative", {"averaged": -1}), ("whole", {"best.found": 1.0})):
        manifest("bad_history_" + name, history={**history, **change})
    manifest("bad_history", history=[1])
    manifest("settings", settings={"train.seed": "1", "model.plugin": "gpt2", "odd key": "a\x01\tb"})
    manifest("fields", settings={"data.field.0": "f32 (1,28,28) any image", "data.field.1": "i64 () 0..9 label"})
    for i, text in enumerate(("f32", "f16 () any x", "f32 (0) any x", "f32 (1,) any x", "f32 (99999,99999) any x", "i64 () 1.. x",
                              "i64 () any ", "f32 (1,1,1,1,1,1,1,1,1) any x")):
        manifest(f"bad_field_{i}", settings={"data.field.0": text})
    for name, key in (("empty", ""), ("equals", "a = b"), ("line", "a\nb"), ("long", "k" * 256)):
        manifest("bad_setting_name_" + name, settings={key: "1"})
    manifest("bad_settings", settings=["x"])
    manifest("bad_setting", settings={"train.seed": 1})
    manifest("settings_empty", settings={})
    manifest("bad_settings_many", settings={str(i): "" for i in range(9000)})
    manifest("bad_format", format="something else")
    manifest("bad_version", version="1")
    manifest("later_version", version=3)
    shards = {f"optimizer-{i + 1:05}-of-00002.safetensors": facts for i in range(2)}
    manifest("sharded", version=2, shards=2, files={"model.safetensors": facts, **shards})
    manifest("bad_no_shards", version=2)
    manifest("bad_shards", version=2, shards=5000)
    manifest("bad_shard_missing", version=2, shards=3, files={"model.safetensors": facts, **shards})
    manifest("bad_seed", seed="-1")
    manifest("bad_seed_with_zeros", seed="007")
    manifest("bad_step", step=-1)
    manifest("bad_epoch", epoch=[1])
    manifest("bad_no_cursor", drop=("cursor",))
    manifest("bad_world_size_0", world_size=0)
    manifest("huge_world_size", world_size="18446744073709551615")
    manifest("bad_long_model", model="m" * 64)
    manifest("bad_finished", finished=1)
    manifest("bad_hook", hook=7)
    manifest("bad_files", files=[])
    manifest("bad_no_bytes", files={"model.safetensors": {"sha256": "ab" * 32}})
    manifest("bad_zero_bytes", files={**good["files"], "model.safetensors": {"bytes": 0, "sha256": "ab" * 32}})
    manifest("bad_short_hash", files={**good["files"], "model.safetensors": {"bytes": 1, "sha256": "ab"}})
    put("manifest", "bad_checksum", json.dumps({**good, "checksum": "00" * 32}))
    put("manifest", "bad_no_json", "{")
    put("manifest", "bad_control_near", '{"a": \x01}')
    put("manifest", "bad_array", "[]")
    put("manifest", "bad_key_twice", '{"a":1,"a":2}')


# ---- hook state ------------------------------------------------------------------------------------------------------
def seeds_hook_state():
    def file(world, own=5, shared=3, dtype="F32", extra=None, pad=b""):
        header, data = {}, b""
        for r in range(world):
            header[f"rank{r}.bucket0.error"] = tensor(dtype, [own], len(data), len(data) + 4 * own)
            data += struct.pack(f"<{own}f", *range(own))
        header["q"] = tensor("F32", [shared], len(data), len(data) + 4 * shared)
        data += bytes(4 * shared)
        if extra:
            header[extra] = tensor("U8", [1], len(data), len(data) + 1)
            data += b"x"
        text = json.dumps(header, separators=(",", ":")).encode() + pad
        return safetensors(text, data)

    def aligned(world, off):
        for n in range(8):
            data = file(world, pad=b" " * n)
            if (8 + struct.unpack("<Q", data[:8])[0]) % 4 == off:
                return data
        raise AssertionError

    put("hook_state", "same_world", bytes([2, 1, 0]) + aligned(2, 0))
    put("hook_state", "other_world", bytes([3, 1, 0]) + aligned(3, 0))
    put("hook_state", "other_world_unaligned", bytes([3, 1, 0]) + aligned(3, 1))
    put("hook_state", "same_world_unaligned", bytes([2, 1, 0]) + aligned(2, 3))
    put("hook_state", "no_ranks", bytes([0, 1, 0]) + file(0))
    put("hook_state", "other_hook", bytes([2, 1, 1]) + file(2))
    put("hook_state", "other_version", bytes([2, 2, 0]) + file(2))
    put("hook_state", "no_file", bytes([2, 1, 0]))
    put("hook_state", "huge_world", bytes([255, 1, 0]) + file(2))
    put("hook_state", "other_size", bytes([2, 1, 0]) + file(2, own=4))
    put("hook_state", "other_dtype", bytes([2, 1, 0]) + file(2, dtype="I32"))
    put("hook_state", "one_too_many", bytes([2, 1, 0]) + file(2, extra="more"))
    put("hook_state", "bad_file", bytes([2, 1, 0]) + b"xxxxxxxxxxxx")


# ---- datasets --------------------------------------------------------------------------------------------------------
def idx(dims, data, kind=8, magic=0):
    return struct.pack(">HBB", magic, kind, len(dims)) + b"".join(struct.pack(">I", d) for d in dims) + data


def seeds_idx():
    def case(name, images, labels, flags=0):
        put("idx", name, bytes([flags]) + struct.pack("<H", len(images)) + images + labels)

    images, labels = idx([3, 2, 2], bytes(range(12))), idx([3], b"\1\2\3")
    case("plain", images, labels)
    case("both_gzip", images, labels, 3)
    case("limit", images, labels, 4)
    case("limit_gzip", images, labels, 7)
    case("many", idx([9000, 1, 1], bytes(9000)), idx([9000], bytes(9000)), 7)
    case("gzip_of_python", gzip.compress(images, mtime=0), gzip.compress(labels, mtime=0))
    case("bad_magic", b"\1\2\3\4" + images[4:], labels)
    case("bad_type", idx([3, 2, 2], bytes(12), 9), labels)
    case("bad_rank", idx([3, 4], bytes(12)), labels)
    case("bad_zero", idx([0, 2, 2], b""), labels)
    case("bad_product", idx([2**31, 2**31, 2**31], b""), labels)
    case("bad_promise_gzip", idx([2**31, 2, 2], b""), labels, 1)
    case("bad_large_promise", idx([2**20, 64, 64], b""), labels)
    case("bad_short", images[:-1], labels)
    case("bad_long", images + b"x", labels)
    case("bad_short_gzip", images[:-1], labels, 1)
    case("bad_long_gzip", images + b"x", labels, 1)
    case("bad_header", images[:7], labels)
    case("bad_header_gzip", images[:7], labels, 1)
    case("bad_counts", images, idx([2], b"\1\2"))
    case("bad_empty", b"", labels)
    case("bad_one_byte", b"\x1f", labels)
    packed = gzip.compress(images, mtime=0)
    case("bad_gzip_cut", packed[:-9], labels)
    case("bad_gzip_trailer", packed[:-8] + bytes(8), labels)
    case("bad_gzip_more", packed + b"more", labels)
    case("bad_gzip_start", b"\x1f\x8b" + b"xxxx", labels)
    case("bad_gzip_data", packed[:12] + b"\xff\xff\xff" + packed[15:], labels)
    case("one_row", idx([1, 1, 1], b"\5"), idx([1], b"\x63"))


def seeds_csv():
    def case(name, text, flags=0, target="y", kind=0, missing=0, split=0, most=20, delimiter=0, fit=None):
        first = b"" if fit is None else struct.pack("<H", len(fit)) + fit.encode()
        text = text if isinstance(text, bytes) else text.encode()
        put("csv", name, bytes([delimiter, kind, missing, flags | (16 if fit is not None else 0), split, most])
            + target.encode() + b"\0" + first + text)

    plain = "a,b,c,y\n1,red,x,0\n2,blue,x,1\n-3.5e2,red,x,0\n"
    case("plain", plain)
    case("standardised", plain, 4)
    case("class_of_texts", plain, target="b")
    case("number", plain, target="a", kind=2)
    case("column_by_number", plain, target="4")
    case("quotes", '\xef\xbb\xbfa,"b ""q"", c",y\r\n"1\n","x,\r\ny",0\r\n\r\n2,  z  ,1'.encode("latin1"))
    case("returns", "a,y\r1,0\r\r2,1\r")
    case("no_header", "1;2;0\n3;;1\n", 1, "3", missing=2, delimiter=1)
    case("tabs", "a\tb\ty\n\t\t0\n1\t\t1\n2\t3\t1\n", missing=1, delimiter=2)
    case("missing_mean", "a,b,y\n1,NA,0\n,x,1\n3,?,0\n", 2 | 4, missing=1)
    case("missing_listed", "a,b,y\n1,NA,0\n?,x,1\n3,?,0\n", 2 | 32, missing=2)
    case("categorical", "a,y\n1,0\n2,1\n10,1\n", 64)
    case("train", plain * 3, 4, split=1 + 3 * 2)
    case("validation_id", "a,c,y\n1,k,0\n2,l,1\n3,m,0\n4,n,1\n", 128, split=2 + 3 * 2)
    case("fit", "a,b,y\n5,green,1\n6,red,0\n", 4, fit="a,b,y\n1,red,0\n2,blue,1\n")
    case("fit_unknown_class", "a,b,y\n5,green,7\n", fit="a,b,y\n1,red,0\n2,blue,1\n")
    case("fit_text", "a,b,y\nfive,green,1\n", fit="a,b,y\n1,red,0\n2,blue,1\n")
    fit = "a,b,y,d\n1,red,0,4\n2,blue,1,7\n"
    case("file_without_target", "a,b,d\n5,green,6\n", 4, fit=fit)
    case("file_with_empty_target", "a,b,y,d\n5,green,,6\n7,red,?,1\n", 4, fit=fit)
    case("file_without_other", "a,y,d\n5,1,6\n", 4, fit=fit)
    case("file_without_header", "5;6\n", 1, "2", delimiter=1, fit="1;0;2\n3;1;5\n")
    case("fit_other_names", "a,y\n5,1\n", fit="a,b,y\n1,red,0\n2,blue,1\n")
    case("skip_bad", 'a,y\n1,0\n2\n3,4,5\n4"x,1\n"5"x,1\n,\n6,1\n', 8)
    case("bad_cells", "a,y\n1,0\n2\n")
    case("bad_quote", 'a,y\n1,0\n2"x,1\n')
    case("bad_open_quote", 'a,y\n1,0\n"2,1\n')
    case("bad_zero_byte", b"a,y\n1,0\n2\0,1\n")
    case("bad_utf16", plain.encode("utf-16"))
    case("bad_twice", "a,a,y\n1,2,0\n")
    case("bad_many", "a,y\n" + "".join(f"t{i},{i % 2}\n" for i in range(30)))
    case("bad_one_class", "a,y\n1,0\n2,0\n")
    case("bad_nothing_left", "a,y\n1,0\n1,1\n")
    case("bad_no_rows", "a,y\n")
    case("bad_blank", "\n \n")
    case("bad_missing", "a,y\n1,0\n,1\n")
    case("bad_target", plain, target="z")
    case("bad_no_target", plain, target="")
    case("bad_split", plain, split=1)
    case("bad_empty_split", plain, split=1 + 3 * 4)
    case("bad_empty", "")
    case("bad_ignored_target", plain, 32, "b")
    case("bad_id_is_target", plain, 128, "c")
    case("bad_no_id", "a,y\n1,0\n2,1\n", 128)
    case("bad_header", 'a"b,y\n1,0\n')
    case("bad_no_good_row", "a,y\n1\n", 8)
    case("no_category_fits", "a,y\nx,0\nz,1\n", fit="a,y\nx,0\nw,1\n")
    case("many_columns", ",".join(f"c{i}" for i in range(300)) + ",y\n" + "1," * 300 + "0\n" + "2," * 300 + "1\n")


def npy(descr, shape, data, version=1, order="False"):
    text = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({','.join(map(str, shape))},), }}\n".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 if version == 1 else 4, "little") + text + data


def npz(method, **members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as z:
        for name, data in members.items():
            z.writestr(zipfile.ZipInfo(name + ".npy"), data, method)
    return out.getvalue()


def seeds_npy():
    def case(name, x, y, how=0, kind=0, layout=0, begin=0, end=8):
        put("npy", name, bytes([kind, layout, begin, end, how]) + struct.pack("<H", len(x)) + x + y)

    def packed(name, data):
        put("npy", name, bytes([0, 0, 0, 8, 1]) + data)

    labels = npy("|u1", [3], b"\1\0\2")
    for descr in ("<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "|b1", "|u1", "|i1", "<i2", ">i2", "<u2", "<i4", ">u4", "<i8", ">i8"):
        case("dtype_" + descr.replace("<", "l").replace(">", "b").replace("|", ""),
             npy(descr, [3, 2], bytes([0, 60] * 3 * int(descr[2]))), labels)
    floats = npy("<f4", [3, 2], struct.pack("<6f", *range(6)))
    case("version_2", npy("<f4", [3], bytes(12), 2), npy("<f4", [3, 1], bytes(12), 3))
    case("as_floats", npy("<i4", [3, 2], bytes(range(24))), labels, kind=1)
    case("part", floats, labels, begin=3, end=7)
    case("image", npy("|u1", [3, 3, 2, 5], bytes(range(90))), labels)
    case("image_last", npy("|u1", [3, 5, 2, 3], bytes(range(90))), labels)
    case("image_floats", npy("<f8", [3, 2, 2, 3], bytes(288)), labels, layout=2)
    case("image_grey", npy("|u1", [3, 4, 4], bytes(48)), labels)
    case("long_sample", npy("<f8", [1, 600], bytes(4800)), npy("<i8", [1, 9], bytes(72)))
    case("fortran_of_one", npy("<f4", [3, 1], bytes(12), order="True"), labels)
    case("npz_made", floats, labels, 2)
    case("npz_made_bad", floats[:-1], labels, 2)
    packed("npz_stored", npz(zipfile.ZIP_STORED, x=floats, y=labels))
    packed("npz_deflated", npz(zipfile.ZIP_DEFLATED, x=npy("<f4", [3, 200], bytes(2400)), y=labels))
    packed("npz_bad_method", npz(zipfile.ZIP_LZMA, x=floats, y=labels))
    packed("npz_bad_name", npz(zipfile.ZIP_STORED, z=floats, y=labels))
    packed("npz_bad_checksum", npz(zipfile.ZIP_STORED, x=floats, y=labels).replace(b"\0\0\x80\x3f", b"\0\0\x80\x40", 1))
    packed("npz_bad_cut", npz(zipfile.ZIP_STORED, x=floats, y=labels)[:-30])
    bomb = npz(zipfile.ZIP_DEFLATED, x=npy("|u1", [3, 10**9], b"abc"), y=labels)
    at = bomb.index(b"PK\1\2") + 24
    size = struct.unpack("<I", bomb[at:at + 4])[0] - 3 + 3 * 10**9
    packed("npz_bad_bomb", bomb[:at] + struct.pack("<I", size) + bomb[at + 4:])
    packed("npz_bad_nothing", b"")
    case("bad_counts", floats, npy("|u1", [2], b"\1\0"))
    case("bad_short", floats[:-1], labels)
    case("bad_long", floats + b"x", labels)
    case("bad_nan", npy("<f4", [3], b"\xff" * 12), labels)
    case("bad_fortran", npy("<f4", [3, 2], bytes(24), order="True"), labels)
    case("bad_dtype", npy("|O", [3], b"x"), labels)
    case("bad_zero", npy("<f4", [3, 0], b""), labels)
    case("bad_product", npy("<f4", [2**40, 2**40], b""), labels)
    case("bad_number", npy("<f4", [10**30], b""), labels)
    case("bad_dimensions", npy("<f4", [1] * 9, bytes(4)), labels)
    case("bad_version", npy("<f4", [3], bytes(12), 4), labels)
    case("bad_start", b"\x93NUMPX" + floats[6:], labels)
    case("bad_header_cut", floats[:40], labels)
    case("bad_header_long", b"\x93NUMPY\2\0\1\0\1\0", labels)
    case("bad_u8", floats, labels, kind=2)
    case("bad_i64", floats, labels, kind=3)
    case("bad_part", floats, labels, begin=5, end=5)
    for name, text in (("records", "{'descr': [('a', '<f4')]}"), ("scalar", "{'descr': '<f4', 'fortran_order': False, 'shape': ()}"),
                       ("no_dtype", "{'descr': 4}"), ("key", "{'order': 4}"), ("twice", "{'descr': '<f4', 'descr': '<f4'}"),
                       ("colon", "{'descr' '<f4'}"), ("comma", "{'descr': '<f4' }x"), ("few", "{'descr': '<f4'}"), ("open", "{'descr"),
                       ("order", "{'fortran_order': 1}"), ("shape", "{'shape': 3}"), ("bracket", "{'shape': (3 3)}"), ("list", "[]")):
        case("bad_header_" + name, b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text.encode() + bytes(8), labels)


def seeds_images():
    put("stl10", "three", bytes([0, 0, 3, 1, 5, 10]))
    put("stl10", "limit", bytes([2, 0, 3, 1, 5, 10]))
    put("stl10", "limit_1", bytes([1, 0, 2, 9, 3]))
    put("stl10", "bad_label_0", bytes([0, 0, 3, 1, 0, 10]))
    put("stl10", "bad_label_11", bytes([0, 0, 3, 1, 5, 11]))
    put("stl10", "bad_counts", bytes([0, 0, 3, 1, 5]))
    put("stl10", "bad_odd", bytes([0, 1, 3, 1, 5, 10]))
    put("stl10", "bad_empty_images", bytes([0, 0, 0, 1]))
    put("stl10", "bad_empty_labels", bytes([0, 0, 1]))
    put("stl10", "no_folder", b"")

    def cifar(name, classes, split, limit, sizes, labels):
        sizes = list(sizes) + [(0, 0)] * (5 - len(sizes))
        put("cifar", name, bytes([classes, split, limit]) + bytes(n for pair in sizes for n in pair) + bytes(labels))

    five = [(1, 0), (2, 0), (1, 0), (1, 0), (3, 0)]
    cifar("ten", 0, 0, 0, five, range(8))
    cifar("ten_limit_2", 0, 0, 2, five, range(8))
    cifar("ten_limit_3", 0, 0, 3, five, range(8))
    cifar("many", 0, 0, 0, [(69, 0)] + five[1:], [k % 10 for k in range(80)])
    cifar("hundred", 1, 0, 0, [(2, 0)], [19, 99, 0, 0])
    cifar("twenty", 2, 0, 0, [(2, 0)], [19, 99, 0, 0])
    cifar("hundred_test", 1, 1, 0, [(2, 0), (3, 0)], [19, 99] + [1] * 8)
    cifar("bad_label", 0, 0, 0, five, [10] * 8)
    cifar("bad_fine", 1, 0, 0, [(1, 0)], [0, 100])
    cifar("bad_coarse", 2, 0, 0, [(1, 0)], [20, 0])
    cifar("bad_odd", 0, 0, 0, [(1, 1)], [1])
    cifar("bad_empty", 0, 0, 0, [(1, 0), (0, 0)], [1])
    cifar("bad_no_test", 0, 1, 0, five, [1])
    put("cifar", "no_folder", b"")


def seeds_tokens():
    def case(name, first, second=b"", fmt=0, context=3, vocabulary=0, begin=0, end=16, how=0x10 | 0 | 1 << 2):
        put("tokens", name, bytes([fmt]) + struct.pack("<HH", context, vocabulary) + bytes([begin, end, how])
            + struct.pack("<H", len(first)) + first + second)

    def llmc(tokens, magic=20240520, version=1, count=None):
        head = struct.pack("<III", magic, version, len(tokens) if count is None else count)
        return head + bytes(1024 - len(head)) + b"".join(struct.pack("<H", t) for t in tokens)

    text = b"To be, or not to be, that is the question."
    case("text", text)
    case("two_files", text, text, how=0x20 | 1 << 2)
    case("pattern", text, text, how=0x10 | 2)
    case("parts", text, begin=2, end=14)
    case("exact_context", text, context=len(text) - 2)
    case("llmc", llmc([1, 2, 50256, 4, 5, 6, 7, 8, 9]))
    case("llmc_two_files", llmc(range(20)), llmc(range(9)), how=0x20 | 1 << 2)
    case("llmc_as_bytes", llmc(range(9)), fmt=1)
    case("long_window", bytes(9000), context=8500)
    case("many_blocks", bytes(60000), bytes(16000), how=0x20 | 1 << 2)
    case("bad_token", llmc([1, 2, 50257, 4, 5, 6, 7, 8, 9]))
    case("bad_token_of_text", b"\0\1\2\3\4\5\6\7", vocabulary=5)
    case("bad_token_second", bytes(8), b"\7" * 9, vocabulary=5, how=0x20 | 1 << 2)
    case("bad_magic", llmc(range(9), magic=1), fmt=2)
    case("bad_version", llmc(range(9), version=2))
    case("bad_count", llmc(range(9), count=10))
    case("bad_short_header", b"x" * 100, fmt=2)
    case("bad_mixed", llmc(range(9)), text, how=0x20 | 1 << 2)
    case("bad_context", text, context=len(text) - 1)
    case("bad_parts", text, begin=5, end=5)
    case("bad_pattern", text, how=0x10 | 3)
    case("bad_no_files", text, how=0)
    case("bad_empty", b"")


# ---- tokenizers ------------------------------------------------------------------------------------------------------
def seeds_tokenizer():
    def case(name, first, second="", text="a b ab<s> \u00e9\u4e00\n 12", kind=0):
        first, second = (x if isinstance(x, str) else json.dumps(x, separators=(",", ":")) for x in (first, second))
        first, second, text = first.encode(), second.encode(), text if isinstance(text, bytes) else text.encode()
        put("tokenizer", name, struct.pack("<BHH", kind, len(first), len(second)) + first + second + text)

    words = {"a": 0, "b": 1, "ab": 2, "\u2581": 3, "<0x0A>": 4, "<unk>": 5, "\u0120": 6}
    model = {"type": "BPE", "unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True, "vocab": words, "merges": ["a b"]}
    special = {"id": 7, "content": "<s>", "special": True, "lstrip": True, "rstrip": True, "normalized": False}
    added = [special, {"id": 8, "content": "ab c", "single_word": True, "normalized": True}]

    def whole(pre=None, normalizer=None, decoder=None, post=None, **more):
        return {"added_tokens": added, "normalizer": normalizer, "pre_tokenizer": pre, "decoder": decoder,
                "post_processor": post, "model": {**model, **more}}

    def sequence(name, *steps):
        return {"type": "Sequence", name: list(steps)}

    split = {"type": "Split", "pattern": {"Regex": r"\p{L}+|[^\s]|\s+(?!\S)|\s+"}, "behavior": "Isolated", "invert": False}
    slow = {"type": "Split", "pattern": {"Regex": r"(?<=a)b|\w"}, "behavior": "MergedWithNext", "invert": True}
    text = {"type": "Split", "pattern": {"String": "a"}, "behavior": "MergedWithPrevious"}
    level = {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}
    mark = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
                "special_tokens": {"<s>": {"ids": [7]}}}
    case("plain", whole())
    case("byte_level", whole(level, decoder={"type": "ByteLevel"}, ignore_merges=True))
    case("split", whole(sequence("pretokenizers", split, text, {**level, "use_regex": False})))
    case("slow", whole(sequence("pretokenizers", slow, {"type": "Digits", "individual_digits": True})))
    case("marks", whole(mark, decoder={"type": "Metaspace", "replacement": "\u2581"}))
    case("llama2", whole(normalizer=sequence("normalizers", {"type": "Prepend", "prepend": "\u2581"},
                                             {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}),
                         decoder=sequence("decoders", {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                                          {"type": "ByteFallback"}, {"type": "Fuse"},
                                          {"type": "Strip", "content": " ", "start": 1, "stop": 0}), post=template))
    case("forms", whole(normalizer=sequence("normalizers", {"type": "NFD"}, {"type": "NFKC"}, {"type": "Lowercase"},
                                            {"type": "Strip"})), text="e\u0301 A\u0130 \ufb01 \u1100\u1161 ")
    case("words", whole(sequence("pretokenizers", {"type": "Whitespace"}, {"type": "Punctuation"})))
    case("names", whole(), {"bos_token": "<s>", "eos_token": {"content": "<unk>"}})
    case("long_word", whole(), text="ab" * 300)
    case("bytes", whole(level), text=bytes(range(256)))
    case("gpt2", {"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}, "#version: 0.2\na b\n", "aab<|endoftext|>", kind=1)
    case("gpt2_no_merges", {"a": 0}, "", kind=1)
    case("bad_merge", {"a": 0}, "a c\n", kind=1)
    case("bad_json", "{\"model\":")
    case("bad_type", whole({"type": "BertPreTokenizer"}))
    case("bad_regex", whole({**split, "pattern": {"Regex": "(["}}))
    case("bad_id", {"model": {"vocab": {"a": 1 << 40}, "merges": []}})
    words_only = {"vocab": words, "merges": ["a b"]}
    case("pairs", {"model": {**words_only, "merges": [["a", "b"]]}})
    case("whole_words", whole(), text="ab c xab c ab cx ab c\u24b6  <s>  ")
    case("many_added", {"model": words_only, "added_tokens": [{"id": 7, "content": "q", "special": True}, {"id": 8, "content": "qq", "single_word": True},
                                                              {"id": 9, "content": "p", "lstrip": True}, {"id": 7, "content": "q"}]}, text="q qq \u00e9qq  p q")
    case("roberta", whole(post={"type": "RobertaProcessing", "cls": ["<s>", 7], "sep": ["<unk>", 5]}))
    case("processors", whole(post=sequence("processors", {"type": "ByteLevel"}, template)))
    case("runs", whole(sequence("pretokenizers", {"type": "WhitespaceSplit"}, {**text, "behavior": "Contiguous"}, {"type": "Digits"})), text="aab 12 aaa")
    bad_post = {"pair": {"type": "BertProcessing", "cls": "x"}, "post": {"type": "X"}, "list": {"type": "Sequence"}, "ids": {**template, "special_tokens": {}},
                "id": {**template, "special_tokens": {"<s>": {"ids": [-1]}}}, "two": {**template, "single": [{"Sequence": {"id": "A"}}, {"Sequence": {"id": "B"}}]},
                "none": {**template, "single": []}, "single": {**template, "single": 1}}
    for name, post in bad_post.items():
        case("bad_post_" + name, whole(post=post))
    bad_model = {"text_id": {"vocab": {"a": "b"}, "merges": []}, "triple": {**words_only, "merges": [["a", "b", "c"]]}, "numbers": {**words_only, "merges": [[1, 2]]},
                 "dropout": {**words_only, "dropout": 0.5}, "prefix": {**words_only, "dropout": 0, "end_of_word_suffix": "x"},
                 "unigram": {**words_only, "type": "Unigram"}, "unknown": {**words_only, "unk_token": "nope"}, "bool": {**words_only, "fuse_unk": 1}}
    for name, bad in bad_model.items():
        case("bad_model_" + name, {"model": bad})
    case("bad_added_id", {"model": words_only, "added_tokens": [{"id": 99, "content": "z"}]})
    case("bad_added_taken", {"model": {"vocab": {"a": 1}, "merges": []}, "added_tokens": [{"id": 1, "content": "z"}]})
    case("bad_array", "[]")
    case("bad_names", whole(), {"bos_token": "nope"})
    case("bad_level", whole(sequence("pretokenizers", level, split)))
    case("bad_deep", whole(sequence("pretokenizers", sequence("pretokenizers", sequence("pretokenizers", sequence("pretokenizers", sequence("pretokenizers", split)))))))
    case("bad_many", whole(sequence("pretokenizers", *[{"type": "Digits"}] * 40)))
    case("bad_behavior", whole({**split, "behavior": "Odd"}))
    case("bad_strip", whole(decoder={"type": "Strip", "content": " ", "start": -1}))


# ---- configuration ---------------------------------------------------------------------------------------------------
def seeds_ini():
    end, sets = b"\x1e", b"\x1d"
    # conf_*, beside them: examples of conf/ as they were once, which need not follow these
    small = b"[group]\nbackend = shm\n[train]\nmax_steps = 3\n[model]\nplugin = mlp\n[data]\nplugin = synthetic\n"
    cases = {
        "small": small, "empty": b"", "byte_order_mark": b"\xef\xbb\xbf" + small, "crlf": small.replace(b"\n", b"\r\n"),
        "tabs": small.replace(b" = ", b"\t=\t"), "comments": b"; a\n# b\n" + small + b"[output] ; c\ndir = x ; d\n",
        "empty_section": small + b"[output]\n[loader]\n", "section_twice": small + b"[train]\nseed = 1\n",
        "list": small + b"[train]\ndevice = cpu:0,\n  cpu:1\n  cpu:2\n", "list_commas": small + b"[train]\nfreeze = a, b,\n",
        "long_line": small + b"[checkpoint]\ndir = " + b"d" * 3000 + b"\n",
        "long_blanks": small + b"[checkpoint]\ndir = " + b"d " * 1500 + b"d\n",
        "long_list": small + b"[train]\nfreeze = " + b", ".join(b"layer%d.*" % i for i in range(60)) + b"\n",
        "includes": b"include = 201\n[train]\nseed = 2\n" + end + b"include = 202\n[train]\nseed = 1\n" + end + small,
        "trace": small + b"[output]\ndir = out\ntrace_steps = 3-9\n", "nodes": small + b"[group]\nnodes = a:1, [::1]:2\n",
        "eval": small + b"[eval]\nplugin = synthetic\nmean = 0.5, 0.5, 0.5\nstd = 1,1,1\n[eval.synthetic]\nseed = 3\n",
        "plugin_sections": small + b"[model.mlp]\nhidden = 3\n[backend.gloo-tcp]\nthreads = 2\n[hook]\nplugin = bf16\n",
        "batches": small + b"[train]\nbatch_size = 4\naccumulate = 2\nglobal_batch = 48\n",
        "adam": small + b"[optimizer]\nalgorithm = adamw\nbetas = 0.9, 0.95\nlr = 1e-3\nclip_norm = 1\nschedule = cosine\n",
        "units": small + b"[ddp]\nbucket_size = 25 MiB\n[group]\npeer_timeout = 1min\n",
        "rank_auto": small + b"[group]\nrank = auto\n", "checkpoints": small + b"[checkpoint]\ndir = c\nresume = auto\nkeep = 3\n",
    }
    more_bad = {
        "section_names_nothing": b"[model.]\n", "section_kind": b"[modle.mlp]\n", "betas_of_1": b"[optimizer]\nalgorithm = adam\nbetas = 0.9, 1\n",
        "auto_deterministic": b"[ddp]\nbucket_size = auto\n[train]\ndeterministic = yes\n", "zero_and_hook": b"[ddp]\nzero = 1\n[hook]\nplugin = bf16\n",
        "rank_beyond": b"[group]\nrank = 3\nworld_size = 2\n", "empty_sampler": b"[sampler]\nplugin =\n", "empty_resume": b"[checkpoint]\nresume =\n",
        "batches_overflow": b"[train]\nbatch_size = 2147483647\naccumulate = 2147483647\n", "batches_indivisible": b"[train]\nglobal_batch = 7\naccumulate = 2\n",
        "batches_accumulate": b"[train]\nglobal_batch = 48\nbatch_size = 4\n", "batches_divide": b"[train]\nglobal_batch = 48\n",
    }
    for name, text in more_bad.items():
        put("ini", "bad_" + name, small + text)
    bad = {
        "include_loop": b"include = 201\n" + end + b"include = 200\n", "include_itself": b"include = 200\n",
        "include_missing": b"include = nowhere.ini\n", "include_nothing": b"include =\n", "include_folder": b"include = /proc\n",
        "include_twice": b"include = 201\ninclude = 201\n", "include_late": small + b"include = 201\n",
        "include_continued": b"include = 201\n 202\n", "include_bad": b"include = 201\n" + end + b"[x\n",
        "include_deep": end.join(b"include = 20%d\n" % (i + 1) for i in range(7)) + end + b"include = 207\n",
        "key_first": b"seed = 1\n", "no_bracket": b"[train\n", "text_behind_header": b"[train] x\n", "no_section_name": b"[]\n",
        "long_section": b"[" + b"s" * 60 + b"]\n", "long_key": b"[train]\n" + b"k" * 60 + b" = 1\n", "no_key": b"[train]\n= 1\n",
        "no_equals": b"[train]\nseed\n", "indented_key": b"[train]\n seed = 1\n", "indented_first": b" x\n",
        "indented_section": b"[train]\n [x]\n", "key_twice": small + b"[train]\nmax_steps = 4\n", "nul": small + b"\0\n",
        "control": small + b"\1\n", "delete": small + b"\x7f\n", "long_line": b"[train]\nx = " + b"y" * 4100 + b"\n",
        "unknown_section": small + b"[trane]\n", "unknown_section_far": small + b"[qwertyuiop]\nx = 1\n",
        "unknown_key": small + b"[train]\nmax_stepz = 4\n", "unknown_key_far": small + b"[train]\nqwertyuiop = 4\n",
        "key_elsewhere": small + b"[train]\nlr = 4\n", "include_in_section": small + b"[train]\ninclude = 4\n",
        "missing_key": b"[train]\nseed = 1\n", "value": small + b"[train]\nepochs = many\n",
        "value_comment": small + b"[train]\nepochs = 3 # three\n", "continued_value": small + b"[train]\nepochs = 3\n  4\n",
        "item": small + b"[optimizer]\nbetas = 0.9, x\n", "item_of_comment": small + b"[train]\nfreeze = a,;b\n", "empty_item": small + b"[train]\nfreeze = a,,b\n",
        "betas": small + b"[optimizer]\nbetas = 0.9\n", "many_items": small + b"[train]\nfreeze = " + b"a," * 1990 + b"\n " + b"b," * 1990 + b"\n " + b"c," * 1990 + b"\n",
        "trace": small + b"[output]\ndir = out\ntrace_steps = 9-3\n", "trace_text": small + b"[output]\ndir = out\ntrace_steps = x\n",
        "trace_without_dir": small + b"[output]\ntrace_steps = 3-9\n", "rank": small + b"[group]\nrank = one\n",
        "zero": small + b"[ddp]\nzero = 1\nshard_update = no\n", "eval_keys": small + b"[eval]\nmean = 1\n",
        "schedule": small + b"[optimizer]\nschedule = step\n", "nesterov": small + b"[optimizer]\nnesterov = yes\n",
        "batches": small + b"[train]\nbatch_size = 5\naccumulate = 2\nglobal_batch = 48\n",
        "plugin_name": small.replace(b"mlp", b"a/b"), "no_plugin": b"[group]\nbackend = shm\n",
        "many_sections": b"".join(b"[model.m%d]\n" % i for i in range(1100)),
        "many_keys": b"[model.m]\n" + b"".join(b"k%d=1\n" % i for i in range(4200)),
    }
    for name, text in cases.items():
        put("ini", name, text)
    for name, text in bad.items():
        put("ini", "bad_" + name, text)
    put("ini", "set", small + sets + b"train.seed=7\ntrain.epochs = 2\ntrain.seed=8\nmodel.mlp.hidden=4")
    for name, line in {"no_equals": b"train.seed", "no_dot": b"seed=1", "no_section": b".seed=1", "no_key": b"train.=1",
                       "comment": b"output.dir=a ;b", "comment_first": b"output.dir=;b", "control": b"output.dir=a\x01",
                       "long": b"output.dir=" + b"d" * 4100, "long_name": b"a" * 60 + b".b=1", "tab": b"output.dir=\ta\tb",
                       "unknown": b"qwertyuiop.b=1"}.items():
        put("ini", "set_" + name, small + sets + line)


def seeds_option():
    INT, UINT, FLOAT, BOOL, STRING, PATH, ENUM, SIZE, DURATION, HOSTPORT = range(1, 11)
    LIST, AUTO, DEPRECATED, SECRET = 1 << 3, 1 << 4, 1 << 2, 1 << 1

    def case(name, kind, flags, rng, dflt, value):
        put("option", name, bytes([kind, flags]) + b"\0".join(t.encode() for t in (rng, dflt, value)) + b"\0")

    for i, (value, rng) in enumerate([("5", "1..9"), ("0", "1..9"), ("10", "1..9"), ("-5", "-9..9"), ("-", ""), ("", "1..2"), ("x", ""),
                                      ("9223372036854775807", ""), ("9223372036854775808", ""), ("5", "1"), ("5", ".."),
                                      ("5", "9..1"), ("5", "x..9"), ("5", "1..x"), ("5", "1" * 70 + "..")]):
        case(f"int_{i}", INT, 0, rng, "1" if i < 3 else "5", value)
    for i, (value, rng) in enumerate([("5", "1..9"), ("-5", ""), ("18446744073709551615", ""), ("18446744073709551616", ""), ("auto", "0..")]):
        case(f"uint_{i}", UINT, AUTO if i == 4 else 0, rng, "5", value)
    for i, (value, rng) in enumerate([("0.1", "0..1"), ("2", "0..1"), ("1e400", ""), ("nan", ""), ("inf", ""), ("1e-3", ""), ("1e", ""), ("-0", ""),
                                      ("0.30000000000000004", ""), ("+1.5", "")]):
        case(f"float_{i}", FLOAT, 0, rng, "0.5", value)
    for value in ("yes", "No", "TRUE", "off", "1", "maybe", ""):
        case(f"bool_{value or 'empty'}", BOOL, 0, "", "no", value)
    for i, (value, rng) in enumerate([("b", "a|b|c"), ("d", "a|b|c"), ("btea", "alpha|beta"), ("a", "a|a"), ("a", "a||b"), ("a", "a b|c"),
                                      ("a", "a" * 70), ("a", ""), ("x", "a,b|c")]):
        case(f"enum_{i}", ENUM, 0, rng, rng.split("|")[0] or "a", value)
    for i, (value, rng) in enumerate([("25MiB", "1KiB..1GiB"), ("3 kB", ""), ("17", ""), ("1TiB", ""), ("2TB", ""), ("99999999999TiB", ""), ("3 XB", ""), ("MiB", ""),
                                      ("0", ""), ("auto", ""), ("99999999999999999999", ""), ("9" * 30, ""), ("1GB", ""), ("2KiB", "1MiB..")]):
        case(f"size_{i}", SIZE, AUTO if value == "auto" else 0, rng, "1MiB", value)
    for i, (value, rng) in enumerate([("30s", "1s..1h"), ("90min", ""), ("2d", ""), ("5", ""), ("0", ""), ("3m", ""), ("106751991168d", ""),
                                      ("99999999999999999d", ""), ("5 weeks", ""), ("10ms", "1s..")]):
        case(f"duration_{i}", DURATION, 0, rng, "30s" if i else "1s", value)
    for i, value in enumerate(["host:1", "[::1]:80", "::1:80", "[]:1", "[a:1", "host", ":80", "host:65536", "host:x", "", "h:"]):
        case(f"hostport_{i}", HOSTPORT, 0, "", "", value)
    case("string", STRING, 0, "", "x", "any text; at all")
    case("string_range", STRING, 0, "1..2", "x", "y")
    case("path_required", PATH, 0, "", "-", "p")
    case("path_required_empty", PATH, 0, "", "-", "")
    case("secret", STRING, SECRET, "", "x", "hidden")
    case("secret_refused", INT, SECRET, "", "1", "hidden")
    case("deprecated", INT, DEPRECATED, "", "1", "2")
    case("deprecated_required", INT, DEPRECATED, "", "-", "2")
    case("list", INT, LIST, "0..9", "", "1, 2,3,")
    case("list_bad", INT, LIST, "0..9", "1,2", "1, 12")
    case("list_empty_item", INT, LIST, "", "1,2", "1,,2")
    case("list_of_texts", STRING, LIST, "", "a", "a b, c , d")
    case("list_of_sizes", SIZE, LIST, "", "1MiB", "1KiB, 2 MiB")
    case("list_long", STRING, LIST, "", "", ", ".join(f"a=number{i}" for i in range(40)))
    case("list_long_plain", STRING, LIST, "", "", ", ".join(f"number{i}" for i in range(40)))
    for i, key in enumerate(["key", "other", "key_", "a", "Key", "k" * 60, "abcdefgh", "a" * 10, "k" * 48]):
        case(f"pair_{i}", INT, DEPRECATED if i % 2 else 0, "", "1", key)
    case("bad_type", 0, 0, "", "1", "1")
    case("bad_type_99", 99, 0, "", "1", "1")
    case("bad_default", INT, 0, "", "x", "1")
    case("bad_default_comment", STRING, 0, "", "a ;b", "1")
    case("bad_doc_control", STRING, 0, "\1", "a", "1")
    case("bad_long_default", STRING, 0, "", "a" * 1001, "1")


def seeds_text():
    ids = ["ddpengine-1 1 2 " + "0a" * 16 + " " + f for f in ("none", "0123456789abcdef")]
    for i, text in enumerate(ids):
        put("identity", f"right_{i}", text)
    put("identity", "inside", b"\x16\x03\x01\x02\0" + ids[1].encode() + b"\0\x29")
    put("identity", "inside_printable", b"\x16\x03\x01\x02\0" + ids[1].encode() + b"~~~\0")
    put("identity", "inside_at_the_end", b"xx" + ids[0].encode())
    for i, text in enumerate(["", "ddpengine-1 ", "ddpengine-1 x", "ddpengine-1 1 x", "ddpengine-1 1 2 0a none", "ddpengine-2 1 2", ids[0] + "x",
                              ids[1][:-1], ids[0].replace("1 2", "-1 2"), ids[0].replace("1 2", "1234567890 2"), ids[0] + " " * 100]):
        put("identity", f"bad_{i}", text)

    for name, text in {"short": "ab" * 16, "long": "AB" * 64 + "\r\n", "mixed": "aF09" * 8 + " \t\n"}.items():
        put("secret", name, text)
    for name, text in {"too_short": "ab" * 15, "too_long": "ab" * 65, "odd": "ab" * 16 + "a", "no_hex": "xy" * 16, "empty": "",
                       "inside": "ab" * 16 + " " + "ab" * 16, "very_long": "ab" * 200, "blank": " \n"}.items():
        put("secret", "bad_" + name, text)

    for i, text in enumerate(["localhost:2\nhost2:2", "127.0.0.1:1", "[::1]:4", "127.0.0.1:1\n[::1]:1", "host1:1\nhost2:1", "?host:1", "host:0",
                              "host:70000", "host", ":1", "host:", "[::1:2", "a b:1", "a@b:1", "[]:1", "::1:2", "host:123456",
                              "localhost:1\nh:65536", "[127.0.0.1]:3\nother:1", "?a:1\n?b:2\nlocalhost:1", "a" * 260 + ":1", ""]):
        put("nodes", f"case_{i}", text)

    for i, text in enumerate(["tcp://192.0.2.7:29500", "tcp://[2001:db8::7]:29500", "tcp://[fe80::1%eth0]:1", "tcp://host.example:1", "tcp://", "udp://x:1",
                              "tcp://:1", "tcp://host", "tcp://host:", "tcp://host:0", "tcp://host:65536", "tcp://host:123456", "tcp://host:1/x", "tcp://host:1x",
                              "tcp://[::1:2", "tcp://[]:1", "tcp://[12]:1", "tcp://[::g]:1", "tcp://a:b:1", "tcp://a b:1", "tcp://u@h:1", "tcp://[::1]", "tcp://" + "h" * 300 + ":1"]):
        put("url", f"case_{i}", text)

    base = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    slurm = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "0", "SLURM_NODEID": "1",
             "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_NODELIST": "rack[1-2]n[03-04,7],login", "SLURM_STEP_NUM_NODES": "2",
             "SLURM_JOB_ID": "1234", "SLURM_STEP_ID": "0"}
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID",
             "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NUM_NODES", "SLURM_JOB_ID", "SLURM_STEP_ID"]

    def environment(name, **values):
        put("environment", name, "\n".join(values.get(n, "") for n in names))

    environment("torchrun", **base)
    environment("torchrun_no_world", RANK="1")
    environment("bad_torchrun_rank", **{**base, "RANK": "4"})
    environment("bad_torchrun_text", **{**base, "WORLD_SIZE": "four"})
    environment("bad_local_size", **{**base, "LOCAL_WORLD_SIZE": "0"})
    environment("bad_long_number", **{**base, "RANK": "1" * 19})
    environment("local_beyond", **{**base, "LOCAL_RANK": "3"})
    environment("slurm", **slurm)
    environment("slurm_one_node", **{**slurm, "SLURM_STEP_NUM_NODES": "1"})
    environment("slurm_job_list", **{**slurm, "SLURM_STEP_NODELIST": "", "SLURM_JOB_NODELIST": "node7"})
    environment("slurm_no_count", **{**slurm, "SLURM_STEP_NUM_NODES": "", "SLURM_STEP_NODELIST": "node7"})
    environment("slurm_no_list", **{**slurm, "SLURM_STEP_NODELIST": ""})
    environment("slurm_no_job", **{**slurm, "SLURM_JOB_ID": ""})
    for i, text in enumerate(["a[", "a[x]", "a[1", "a b", "[1-2]", "]", ",", "h" * 300, "a[" + "1" * 300 + "]", "a[1]b"]):
        environment(f"slurm_list_{i}", **{**slurm, "SLURM_STEP_NODELIST": text})
    for i, text in enumerate(["2", "2,1", "1,2(x3)", "2(x", "2(x0)", "0", "99999", "2;1", "99999999999999999999(x3)", "1(x99999999999999999999)"]):
        environment(f"slurm_tasks_{i}", **{**slurm, "SLURM_STEP_TASKS_PER_NODE": text})
    environment("bad_slurm_node", **{**slurm, "SLURM_NODEID": "x"})
    environment("bad_slurm_job", **{**slurm, "SLURM_JOB_ID": "x"})


def seeds_record():
    lines = ["ddpengine rendezvous 2", "generation 0123456789abcdef", "endpoint 192.0.2.7:29500", "host node1",
             "machine 0f0e0d0c-0000-4000-8000-000000000000/4026531836", "pid 77", "start 123456", "began 1700000000", "interval 1000",
             "secret " + "0123456789abcdef" * 4, "beat 00000000000000000003 00000000001700000003"]
    put("record", "right", "\n".join(lines) + "\n")

    def changed(name, at, line):
        put("record", name, "\n".join(lines[:at] + ([] if line is None else [line]) + lines[at + 1:]) + "\n")

    changed("bad_version", 0, "ddpengine rendezvous 3")
    changed("bad_head", 0, "something else")
    changed("bad_generation", 1, "generation 0123")
    changed("bad_generation_text", 1, "generation 0123456789abcdeg")
    changed("bad_no_endpoint", 2, None)
    changed("bad_empty_endpoint", 2, "endpoint ")
    changed("endpoint_with_control", 2, "endpoint a\tb\x1b[2J:1")
    changed("bad_long_host", 3, "host " + "h" * 200)
    changed("bad_no_machine", 4, "maschine x")
    changed("bad_pid", 5, "pid -1")
    changed("huge_pid", 5, "pid 99999999999999999999")
    changed("own_pid", 5, "pid 1")
    changed("bad_start", 6, "start x")
    changed("huge_began", 7, "began 9223372036854775807")
    changed("bad_began", 7, "began ")
    changed("bad_interval_short", 8, "interval 49")
    changed("bad_interval_long", 8, "interval 60001")
    changed("no_secret", 9, "secret none")
    changed("bad_no_secret", 9, None)
    changed("bad_secret_odd", 9, "secret 012")
    changed("bad_secret_text", 9, "secret 0g")
    changed("bad_secret_case", 9, "secret AB")
    changed("long_secret", 9, "secret " + "0" * 128)
    changed("bad_long_secret", 9, "secret " + "0" * 130)
    changed("bad_beat", 10, "beat 3")
    changed("bad_beat_text", 10, "beat 3 x")
    changed("bad_no_beat", 10, None)
    put("record", "bad_no_newline", "\n".join(lines))
    put("record", "bad_more", "\n".join(lines) + "\nmore\n")
    put("record", "bad_nul", "\n".join(lines).replace("node1", "no\0de") + "\n")
    put("record", "bad_empty", "")
    put("record", "bad_long", "ddpengine rendezvous 2\n" + "x" * 3000)


# ---- control plane ---------------------------------------------------------------------------------------------------
MAGIC, HELLO, AGREEMENT, REQUEST, ABORT, GOODBYE, HEARD, WELCOME, REPLY, FAREWELL, FAILURE, BEAT, STOP, LATER, TIMES = (0x47504444, *range(1, 15))
SET, GET, ADD, REMOVE, BARRIER, GATHER, AGREE = range(1, 8)


def frame(kind, payload=b"", version=3, length=None, magic=MAGIC):
    return struct.pack("<IIII", magic, version | kind << 16, len(payload) if length is None else length, 0) + payload


def text(value):
    value = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<I", len(value)) + value


def action(number, end=0, payload=b""):
    return bytes([number | end << 4]) + payload


def sized(data):
    return bytes([len(data)]) + data


def raw(end, data):
    return b"".join(action(0, end, sized(data[i:i + 200])) for i in range(0, len(data), 200))


def any_frame(end, kind, payload=b"", version=False):
    return action(2 if version else 1, end, bytes([kind]) + sized(payload))


def hello(end, rank, world=4):
    return action(3, end, bytes([rank, world]))


def request(end, op, name=b"key", data=b"", timeout=100, own=False):
    return action(6 if own else 5, end, bytes([op]) + struct.pack("<H", timeout) + bytes([len(name), len(data)]) + name + data)


def joined(end, rank):
    return hello(end, rank) + action(4, end)


ALL = joined(0, 1) + joined(1, 2) + joined(2, 3)


def after(seconds):
    return b"".join(action(7, 0, bytes([min(250, n)])) for n in [250] * (seconds * 10 // 250) + [seconds * 10 % 250])


def seeds_report():
    def lines(*rows):
        return "".join(json.dumps(r) + "\n" for r in rows).encode()

    def step(n, **more):
        return {"event": "step", "step": n, "epoch": 1, "loss": 2 / max(n, 1), "lr": 0.1, "step_ms": 12.5, "data_ms": 0.1, "wait_ms": 1, **more}

    def ranks(n, *work, steps=2):
        return {"event": "ranks", "step": n, "steps": steps, "compute_ms": list(work), **{f: [1] * len(work) for f in ("step_ms", "data_ms", "wait_ms", "update_ms")}}

    start = {"event": "start", "time": 1.5, "world_size": 3, "planned_steps": 9}
    hosts = {"event": "start", "hosts": ["a", "b", "b"], "ranks": [0, 1, 2]}
    span = {"name": "wait 1", "cat": "wait", "ph": "X", "ts": 5.25, "dur": 2, "tid": 1, "args": {"step": 3, "bucket": 1, "bytes": 64}}
    whole = lines(start, *map(step, range(1, 7)), {"event": "eval", "step": 6, "eval_loss": 0.3, "eval_accuracy": 0.5},
                  {"event": "warning", "text": "</script>"}, {"event": "end", "exit_code": 0})
    times = lines(hosts, *(ranks(2 * k, 9, 12, 9) for k in range(1, 4)))
    trace = json.dumps({"traceEvents": [{"ph": "M"}, span, {**span, "ts": 9, "args": {"step": 2}}]}).encode()
    for name, parts in {
        "whole": (whole, times, trace, b"[train]\nseed = 1\n"), "empty": (), "start": (lines(start),), "half": (whole[:-9], times[:-20], trace[:-5]),
        "again": (lines(step(1), step(2), step(3), {"event": "eval", "step": 3, "eval_loss": 1}, step(2), step(2)), lines(ranks(4, 1, 2), ranks(3, 2, 1), ranks(9, 3, 4, 5))),
        "large": (lines(step(2**62), step(1), step(2**53 + 1, loss=1e308)), lines(ranks(2**62, 1e308, -1e308), ranks(1, 1, steps=2**62))),
        "missing": (lines(step(1)), lines({**hosts, "ranks": [4, 0, 4095, -1, "x"]}, ranks(2, 1, 2), ranks(4, None, 2, 3), {"event": "ranks", "step": 5, "steps": 1, "wait_ms": [7]})),
        "odd": (b'{}\n[]\n1\n{"event": 1}\n{"event": "step"}\n{"event": "step", "step": -1}\n{"event": "step", "step": 1, "' + b"y" * 80 + b'": 1, "loss": null, "x": -0.0}\n',
                b'{"event": "ranks", "step": 1, "steps": 0}\n{"event": "start", "hosts": [1, null], "ranks": 3}\n',
                b'{"traceEvents": [1, {"ph": "X", "ts": 1, "dur": -1}, {"ph": 3}, {"ph": "X", "ts": "a", "dur": 1}]}', b"["),
        "series": (lines(step(1, **{f"f{i}": i for i in range(80)}), step(2, f3=1, f70=2)),),
        "many": (lines(*map(step, range(1, 60)), *({"event": "warning", "text": "w"} for _ in range(30))),),
    }.items():
        put("report", name, b"\0".join(parts))


def seeds_control():
    def case(name, *actions, who=0):
        put("control", name, bytes([who]) + b"".join(actions))

    def hello_by_hand(rank=1, world=4, abi=None, pid=7, more=b""):
        header = (ROOT / "core/include/ddpengine/plugin.h").read_text() + (ROOT / "core/include/ddpengine/backend.h").read_text()
        import re
        abis = {k: int(v) for k, v in re.findall(r"#define (DDP_ABI|DDP_BACKEND_ABI)\s+(\d+)", header)}
        return (struct.pack("<IIIIIQIII", rank, world, abis["DDP_ABI"] if abi is None else abi, abis["DDP_BACKEND_ABI"], pid, 0, 0, 0, 0)
                + text("0.1.0") + text("id") + text("host") + text(" (x.ini:1)") + text("") + more)

    case("all_join", ALL)
    case("all_join_and_leave", ALL, *(any_frame(e, GOODBYE) for e in range(3)), action(12, 0, b"\1"), action(12, 0, b"\5"))
    case("nobody_comes", after(25))
    case("one_is_missing", joined(0, 1), joined(1, 2), after(25))
    case("no_hello", after(11))
    case("strangers", action(8, 0, b"\x50"), after(3), after(11))
    case("proven_strangers", action(8, 0, b"\x50"), after(3), who=1)
    case("rank_twice", joined(0, 1), joined(1, 1))
    case("rank_twice_after_all", ALL, action(10), joined(3, 1))
    case("rank_out_of_range", hello(0, 4))
    case("world_differs", hello(0, 1, 5))
    case("other_abi", raw(0, frame(HELLO, hello_by_hand(abi=99))))
    case("other_version", any_frame(0, HELLO, b"x", True))
    case("other_version_later", joined(0, 1), any_frame(0, BEAT, b"x", True))
    case("pid_0", raw(0, frame(HELLO, hello_by_hand(pid=0))), action(4, 0), raw(1, frame(HELLO, hello_by_hand(pid=0))), action(4, 1),
         raw(2, frame(HELLO, hello_by_hand(pid=0))), action(4, 2))
    case("spare", raw(0, frame(HELLO, hello_by_hand(rank=2**32 - 2))), action(4, 0))
    spare = [raw(e, frame(HELLO, hello_by_hand(rank=2**32 - 2))) + action(4, e) for e in range(6)]
    two = joined(0, 1) + after(25) + 3 * action(10)  # ranks 0 and 1 of 4 go on; who has not come by then is closed
    for name, *more in (("rank", joined(3, 2), after(1), action(9, 3), after(1)), ("rank_closes_at_once", joined(3, 2) + action(9, 3)),
                        ("taken", joined(3, 1)), ("twice", joined(3, 2), joined(4, 2)), ("spare", spare[3], after(2)),
                        ("spare_in_its_place", spare[3], spare[4], joined(5, 2), action(9, 3), after(1)),
                        ("rank_and_spare", joined(3, 2), spare[4], action(9, 3), after(1)),
                        ("differs", hello(3, 2), any_frame(3, AGREEMENT, b"a = 2\n")), ("spare_differs", spare[3][:-1], any_frame(3, AGREEMENT, b"a = 2\n")),
                        ("end", joined(3, 2), spare[4], action(12, 0, b"\5"), joined(4, 3)),
                        ("grow", joined(3, 2), spare[4], action(12, 0, b"\6"), action(12, 0, b"\5"), joined(5, 3)),
                        ("after_the_end", action(12, 0, b"\5"), joined(3, 2)), ("lost", joined(3, 2), action(9, 0), joined(4, 3)),
                        ("failed", joined(3, 2), any_frame(0, ABORT, struct.pack("<I", 7) + b"loss is not finite"), joined(4, 3)),
                        ("damaged", joined(3, 2), raw(3, b"xxxxxxxxxxxxxxxxxxxx"), after(1)), ("talks", joined(3, 2), any_frame(3, BEAT), action(4, 3))):
        case("waits_" + name, two, *more, who=3)
    case("waits_and_is_ahead", joined(0, 2), after(25), action(10), joined(3, 1), after(1), who=3)
    case("waits_before_all", spare[0], joined(1, 1), after(3), after(25), who=3)
    case("joins_again_other_settings", joined(0, 1), hello(1, 2), any_frame(1, AGREEMENT, b"a = 2\n"), joined(2, 2), who=3)
    case("joins_again_other_abi", joined(0, 1), raw(1, frame(HELLO, hello_by_hand(rank=2, abi=99))), who=3)
    case("joins_again_half", joined(0, 1), hello(1, 2), after(25), who=3)
    case("hello_cut", raw(0, frame(HELLO, hello_by_hand()[:30])))
    case("hello_long", raw(0, frame(HELLO, hello_by_hand(more=b"x"))))
    case("hello_in_pieces", *(raw(0, frame(HELLO, hello_by_hand())[i:i + 9]) for i in range(0, 99, 9)))
    case("agreement_differs", hello(0, 1), any_frame(0, AGREEMENT, b"a = 2\tx.ini:1\nb = two\t\nc = 3\n"))
    case("agreement_misses", hello(0, 1), any_frame(0, AGREEMENT, b"a = 1\n"))
    case("agreement_more", hello(0, 1), any_frame(0, AGREEMENT, b"b = two\na = 1\nzz\n"))
    case("agreement_empty", hello(0, 1), any_frame(0, AGREEMENT))
    case("agreement_nul", hello(0, 1), any_frame(0, AGREEMENT, b"a = 1\0\n"))
    case("agreement_long", hello(0, 1), any_frame(0, AGREEMENT, b"k" * 130 + b" = " + b"v" * 110 + b"\t" + b"\1"))
    case("agreement_first", any_frame(0, AGREEMENT, b"a = 1\n"))
    case("frames_out_of_place", hello(0, 1), any_frame(0, BEAT))
    case("bytes_of_http", raw(0, b"GET / HTTP/1.1\r\n\r\n"))
    case("bytes_of_tls", raw(0, b"\x16\x03\x01\x00\x05hello"))
    case("tls_with_identity", raw(0, b"\x16\x03\x01" + struct.pack(">H", 68) + ("ddpengine-1 1 4 " + "0a" * 16 + " 0123456789abcdef").encode().ljust(68, b"\0")))
    case("tls_long", raw(0, b"\x16\x03\x01\xff\xff" + bytes(100)))
    case("frame_too_long", raw(0, frame(HELLO, b"", length=5000)))
    case("wrong_magic", raw(0, frame(HELLO, b"x", magic=1)))
    case("closed_early", action(9, 0), action(9, 1))
    case("lost_before_all", joined(0, 1), action(9, 0))
    case("lost_after_all", ALL, action(9, 1), after(1))
    case("comes_again", joined(0, 1), action(9, 0), action(10), joined(3, 1), joined(1, 2), action(9, 1), action(10), joined(4, 2), joined(2, 3), who=3)
    case("damaged_after_all", ALL, raw(1, b"xxxxxxxxxxxxxxxx"), raw(1, b"more"))
    case("unknown_frame", ALL, any_frame(1, 77))
    case("beats", ALL, *(any_frame(e, BEAT, struct.pack("<QQQQQ", 200, 1, 10**6 * (e + 1), 3, 4)) for e in range(3)), action(12, 0, b"\4"), after(2), after(2))
    slow, fast = ([any_frame(e, BEAT, struct.pack("<QQQQQ", 200 * k, k, us * k, k, 4)) for k in range(1, 6)] for e, us in ((0, 10**8), (1, 10**5)))
    third = [any_frame(2, BEAT, struct.pack("<QQQQQ", 200 * k, k, 10**5 * k, k, 4)) for k in range(1, 6)]
    own_steps = action(12, 0, b"\4") * 3
    case("straggler", ALL, *(slow[k] + fast[k] + third[k] + own_steps + after(31) for k in range(5)), action(12, 0, b"\3"))
    case("beat_short", ALL, any_frame(1, BEAT, b"xx"))
    case("beat_long", ALL, any_frame(1, BEAT, bytes(41)))
    def mark(era, step, *ns):
        return struct.pack("<7Q", era, step, *(ns or (step * 10**6 * k for k in range(1, 6))))

    take = action(12, 0, b"\7")
    case("times", ALL, *(any_frame(e, TIMES, mark(1, 10) + mark(1, 11) + mark(1, 12)) for e in range(3)), take)
    case("times_of_one", ALL, any_frame(1, TIMES, mark(1, 10) + mark(1, 12)), take)
    case("times_of_others_steps", ALL, any_frame(0, TIMES, mark(1, 9) + mark(1, 11)), any_frame(1, TIMES, mark(2, 3) + mark(2, 4)), any_frame(2, TIMES, mark(1, 12)), take)
    case("times_backwards", ALL, *(any_frame(e, TIMES, mark(1, 10, *[2**64 - 1] * 5) + mark(1, 9) + mark(1, 12, *[0] * 5)) for e in range(3)), take)
    case("times_many", ALL, *(any_frame(e, TIMES, b"".join(mark(1, s) for s in range(4 * k, 4 * k + 4))) for k in range(20) for e in range(3)), take, take)
    case("times_before_all", joined(0, 1), any_frame(0, TIMES, mark(1, 10)), joined(1, 2), joined(2, 3), take)
    case("times_of_era_0", ALL, any_frame(1, TIMES, mark(0, 10)))
    case("times_short", ALL, any_frame(1, TIMES, mark(1, 10)[:-1]))
    case("times_nothing", ALL, any_frame(1, TIMES))
    case("times_to_a_rank", ALL, any_frame(0, TIMES, mark(1, 10)), who=2)
    case("silence", ALL, *(action(7, 0, b"\x0a") for _ in range(14)))
    case("stop", ALL, any_frame(1, STOP, struct.pack("<I", 15)), any_frame(2, STOP, struct.pack("<I", 2)))
    case("stop_before_all", joined(0, 1), any_frame(0, STOP, struct.pack("<I", 15)), joined(1, 2), joined(2, 3))
    case("stop_bad", ALL, any_frame(1, STOP, struct.pack("<I", 300)))
    case("stop_short", ALL, any_frame(1, STOP, b"x"))
    case("abort", ALL, any_frame(1, ABORT, struct.pack("<I", 7) + b"loss is not finite"), any_frame(2, ABORT, struct.pack("<I", 7) + b"too"))
    case("abort_of_peer", ALL, any_frame(1, ABORT, struct.pack("<I", 5) + b"a peer is lost"), any_frame(2, ABORT, struct.pack("<I", 5) + b"too"), after(1))
    case("abort_and_end", ALL, any_frame(1, ABORT, struct.pack("<I", 5) + b"a peer is lost"), action(9, 1))
    case("abort_timeout", ALL, any_frame(1, BEAT, struct.pack("<QQQQQ", 1, 1, 1, 1, 9)), any_frame(1, ABORT, struct.pack("<I", 6) + b"a collective did not end"))
    case("abort_bad", ALL, any_frame(1, ABORT, struct.pack("<I", 0) + b"x"))
    case("abort_short", ALL, any_frame(1, ABORT, b"x"))
    case("failure", ALL, any_frame(1, FAILURE, struct.pack("<Ii", 6, 0) + b"rank 0 was silent"), any_frame(1, GOODBYE))
    case("failure_bad", ALL, any_frame(1, FAILURE, struct.pack("<I", 999)))
    case("own_failure", ALL, action(12, 0, b"\0"), request(1, SET))
    case("hello_after_failure", joined(0, 1), any_frame(0, BEAT), any_frame(0, 99), joined(1, 2))
    case("goodbye_twice", ALL, any_frame(0, GOODBYE), any_frame(0, GOODBYE), request(0, BARRIER))
    case("store", ALL, request(0, SET, data=b"value"), request(1, GET), request(2, REMOVE), request(1, GET, timeout=1), after(1))
    case("store_waits", ALL, request(0, GET), request(1, GET, b"other"), request(2, SET, data=b"value"), request(2, SET, data=b""))
    case("store_add", ALL, request(0, ADD, data=struct.pack("<q", 5)), request(1, ADD, data=struct.pack("<q", -7)), request(1, GET),
         request(1, ADD, data=b"x"), request(2, SET, data=b"abc"), request(2, ADD, data=bytes(8)))
    case("store_add_to_text", ALL, request(2, SET, data=b"abc"), request(2, ADD, data=bytes(8)))
    case("store_many", ALL, *(request(k % 3, SET, b"key%d" % k, b"v") for k in range(150)), *(request(0, REMOVE, b"key%d" % k) for k in range(0, 150, 3)),
         request(1, GET, b"key4"))
    case("barrier", ALL, *(request(e, BARRIER, b"start") for e in range(3)), request(0, BARRIER, b"start", own=True))
    case("barrier_times_out", ALL, request(0, BARRIER, b"start", timeout=1), request(1, BARRIER, b"other", timeout=9), after(2))
    case("barrier_without", ALL, request(0, BARRIER, b"start"), any_frame(1, GOODBYE), request(2, BARRIER, b"second"))
    case("gather", ALL, *(request(e, GATHER, b"g", b"data%d" % e) for e in range(3)), request(0, GATHER, b"g", b"", own=True))
    case("agree", ALL, *(request(e, AGREE, b"a", struct.pack("<I", 4) + b"x = 1\n") for e in range(3)), request(0, AGREE, b"a", struct.pack("<I", 4) + b"x = 1\n", own=True))
    case("agree_differs", ALL, request(0, AGREE, b"a", struct.pack("<I", 4) + b"x = 2\n"), request(0, AGREE, b"a", struct.pack("<I", 4) + b"x = 1\n", own=True))
    case("agree_differs_later", ALL, request(0, AGREE, b"a", struct.pack("<I", 4) + b"x = 1\n", own=True), request(2, AGREE, b"a", struct.pack("<I", 9) + b"x = 2\n"))
    case("agree_short", ALL, request(0, AGREE, b"a", b"x"))
    case("request_unknown", ALL, request(0, 99))
    case("request_short", ALL, any_frame(1, REQUEST, b"x"))
    case("request_long_name", ALL, any_frame(1, REQUEST, struct.pack("<QIQ", 1, GET, 0) + struct.pack("<I", 2000)))
    case("request_negative_time", ALL, any_frame(1, REQUEST, struct.pack("<QIq", 1, GET, -1) + text("k")))
    case("request_long_time", ALL, any_frame(1, REQUEST, struct.pack("<QIq", 1, GET, 2**62) + text("k")))
    case("with_secret_in_clear", joined(0, 1), who=1)
    case("with_secret_bytes", raw(0, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"), raw(1, b"xx"), raw(2, b"\x17\x03\x03\x00\x05hello"), who=1)
    case("with_secret_hello", raw(0, frame(HELLO, hello_by_hand()[:-4] + text("ddpengine-1 1 4 " + "0a" * 16 + " none"))), who=1)
    case("with_secret_other", raw(0, frame(HELLO, hello_by_hand())), raw(1, frame(2, b"x", version=2)), who=1)
    # another rank
    welcome = struct.pack("<III", 0, 2, 4) + b"".join(struct.pack("<II", r, 100 + r) + text("id") + text("host%d" % r) for r in range(4))
    case("rank_welcome", any_frame(0, WELCOME, welcome), any_frame(0, WELCOME, welcome), who=2)
    case("rank_welcome_short", any_frame(0, WELCOME, welcome[:-1]), who=2)
    case("rank_welcome_long", any_frame(0, WELCOME, welcome + b"x"), who=2)
    case("rank_farewell", any_frame(0, FAREWELL), action(9, 0), who=2)
    case("rank_beat_stop", any_frame(0, BEAT), any_frame(0, STOP, struct.pack("<I", 15)), any_frame(0, STOP, b""), who=2)
    case("rank_failure", any_frame(0, FAILURE, struct.pack("<Ii", 7, 2) + b"loss is not finite\x1b"), action(11, 0, b"\0"), who=2)
    case("rank_failure_bad", any_frame(0, FAILURE, b"x"), who=2)
    case("rank_lost", action(9, 0), who=2)
    case("rank_lost_after_goodbye", any_frame(0, WELCOME, welcome), action(12, 0, b"\1"), any_frame(0, FAREWELL), action(9, 0), action(11, 0, b"\0"), who=2)
    case("rank_damaged", raw(0, b"xxxxxxxxxxxxxxxxxxxx"), who=2)
    case("rank_unknown", any_frame(0, HELLO), who=2)
    case("rank_late_reply", any_frame(0, REPLY, bytes(12)), any_frame(0, REPLY, b"x"), who=2)
    case("rank_silence", *(action(7, 0, b"\x0a") for _ in range(14)), who=2)

    def asks(which, status, reply):
        return action(11, 0, bytes([which, status]) + sized(reply))

    case("rank_asks", asks(0, 0, b""), asks(1, 0, b"x"), asks(2, 0, b""), asks(3, 0, b"value"), asks(4, 0, struct.pack("<q", 9)), asks(5, 0, b""), who=2)
    case("rank_asks_refused", *(asks(k, 0xfd, b"because") for k in range(7)), *(asks(k, 0xfd, b"") for k in range(3)), who=2)
    case("rank_asks_too_much", asks(3, 0, b"v" * 100), asks(4, 0, b"v"), who=2)
    case("rank_gathers", asks(6, 0, struct.pack("<IIII", 1, 0, 2, 3) + b"abcdef"), who=2)
    case("rank_gathers_short", asks(6, 0, b"x"), asks(6, 0, struct.pack("<IIII", 1, 0, 2, 3) + b"abcde"), asks(6, 0, struct.pack("<IIII", 2**32 - 1, 2**32 - 1, 2, 3)), who=2)


def seeds_wire():
    put("wire", "clear_frames", b"\0" + sized(frame(HELLO, b"abc") + frame(BEAT)) + sized(frame(5, b"x")[:9]) + sized(frame(5, b"x")[9:]))
    put("wire", "clear_large", b"\0" + b"".join(sized(frame(BEAT, bytes(180))) for _ in range(200)))
    put("wire", "clear_limit", b"\0" + sized(frame(HELLO, b"", length=4096)) + sized(bytes(255)) * 17)
    put("wire", "clear_too_long", b"\0" + sized(frame(HELLO, b"", length=4097)))
    put("wire", "clear_magic", b"\0" + sized(frame(HELLO, magic=3)))
    put("wire", "clear_version", b"\0" + sized(frame(HELLO, version=9)))
    put("wire", "clear_version_failure", b"\0" + sized(frame(FAILURE, b"why", version=9)))
    put("wire", "clear_closed", b"\0" + sized(b""))
    put("wire", "clear_tls", b"\0" + sized(b"\x16\x03\x01\x00\x03abc"))
    put("wire", "clear_tls_pieces", b"\0" + sized(b"\x16\x03\x01") + sized(b"\0") + sized(b"\x03abc"))
    put("wire", "clear_tls_long", b"\0" + sized(b"\x16\x03\x01\xff\xff"))
    put("wire", "fallen_frames", b"\1" + sized(frame(HELLO, b"abc")))
    put("wire", "fallen_tls", b"\1" + sized(b"\x16\x03\x01\x00\x03abc"))
    for mode, end in ((2, "listens"), (3, "connects")):
        put("wire", end + "_clear", bytes([mode]) + sized(frame(HELLO, b"abc")))
        put("wire", end + "_clear_pieces", bytes([mode]) + sized(frame(HELLO, b"abc")[:3]) + sized(frame(HELLO, b"abc")[3:]))
        put("wire", end + "_other", bytes([mode]) + sized(b"GET / HTTP/1.1"))
        put("wire", end + "_not_tls", bytes([mode]) + sized(b"\x13\x03\x01\0\0\0\0\0\0\0"))
        put("wire", end + "_alert", bytes([mode]) + sized(b"\x15\x03\x03\x00\x02\x02\x28\0\0\0\0\0"))
        put("wire", end + "_long_hello", bytes([mode]) + sized(b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc"))
        put("wire", end + "_bad_hello", bytes([mode]) + sized(b"\x16\x03\x01\x00\x30\x01\x00\x00\x2c" + bytes(44)) + sized(b"x"))
        put("wire", end + "_closed", bytes([mode]) + sized(b""))
        put("wire", end + "_closed_early", bytes([mode]) + sized(b"\x16\x03\x01") + sized(b""))
        put("wire", end + "_cut_hello", bytes([mode]) + sized(b"\x16\x03\x01\x00\x30\x01\x00\x00\x2c" + bytes(9)) + sized(b""))
    frames = b"".join(bytes([kind]) + sized(b"payload") for kind in (HELLO, AGREEMENT, GOODBYE))
    put("wire", "both_same_secret", b"\4\0\0\0" + frames)
    put("wire", "both_other_secret", b"\5\0\0\0" + frames)
    put("wire", "both_only_connects", b"\6\0\0\0" + frames)
    put("wire", "both_only_listens", b"\7\0\0\0" + frames)
    for at in (0, 5, 9, 60, 200, 400, 500, 600, 900):
        put("wire", f"both_changed_{at}", b"\4" + struct.pack("<HB", at, 0x41) + b"\0\0\0" + frames)
    put("wire", "payload", b"\x08\0")
    put("wire", "payload_reads", b"\x08\4\5\6\7\0" + struct.pack("<IQ", 1, 2) + text("bytes") + text("te\x01xt"))
    put("wire", "payload_long", b"\x08\6\4\0" + text("b" * 65))
    put("wire", "payload_short", b"\x08\7\5\0" + text("te\x01xt")[:-1])


# ---- nets --------------------------------------------------------------------------------------------------------------
def seeds_model_config():
    stored = json.loads((ROOT / "tests/parity/vectors/llama.json").read_text())
    for name in ("llama", "qwen2", "qwen3"):
        for style in ("new", "old"):
            keys = ("architectures", "id2label", "label2id")  # long, and nothing is done with them
            put("model_config", f"{name}_{style}", json.dumps({k: v for k, v in stored[name][style].items() if k not in keys}))
    small = {"vocab_size": 256, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    for name, more in {
            "mistral": {"model_type": "mistral", "sliding_window": None, "head_dim": None},
            "window": {"model_type": "mistral", "sliding_window": 4096}, "gemma": {"model_type": "gemma"},
            "biases": {"attention_bias": True, "mlp_bias": True, "layer_types": ["full_attention"]},
            "yarn": {"rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 2, "mscale": 1.0, "mscale_all_dim": 0.5,
                                                         "beta_fast": 16, "beta_slow": 2, "truncate": False}},
            "large": {"hidden_size": 16777216, "vocab_size": 268435456, "num_hidden_layers": 512},
            "half": {"num_attention_heads": 2.5}, "control": {"model_type": "a\x1b[31m\n"}, "text": {"hidden_size": "8"}}.items():
        put("model_config", name, json.dumps({**small, **more}))
    for name, text in {"not_json": "{", "list": "[1, 2]", "twice": '{"a": 1, "a": 2}', "deep": "[" * 3000}.items():
        put("model_config", name, text)


def seeds_model_index():
    whole = {"x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors"}
    for name, index in {
            "whole": {"metadata": {"total_size": 24}, "weight_map": whole}, "one": {"weight_map": {"z": "b.safetensors"}},
            "lacking": {"weight_map": {**whole, "w": "a.safetensors"}}, "elsewhere": {"weight_map": {**whole, "z": "a.safetensors"}},
            "unnamed": {"weight_map": {"x": "a.safetensors"}}, "outside": {"weight_map": {**whole, "x": "../a.safetensors"}},
            "hidden": {"weight_map": {"x": ".a"}}, "absent": {"weight_map": {"x": "c.safetensors"}},
            "itself": {"weight_map": {"x": "model.safetensors.index.json"}}, "number": {"weight_map": {"x": 3}},
            "empty": {"weight_map": {}}, "none": {}}.items():
        put("model_index", name, json.dumps(index))
    put("model_index", "not_json", '{"weight_map": {')


def seeds_net():
    for path in sorted((ROOT / "conf/nets").glob("*.net")):
        put("net", path.stem, path.read_text())
    end = "[loss] type = cross_entropy\n"
    good = {
        "every_layer": "[conv2d] out = 4, kernel = 3, stride = 1, padding = 1, groups = 1, bias = no, init = normal 0.1\n"
                       "[batch_norm2d]\n[gelu]\n[avg_pool2d] kernel = 2\n[max_pool2d] kernel = 2, stride = 1, padding = 1\n"
                       "[adaptive_avg_pool2d] out = 2\n[flatten]\n[layer_norm]\n[rms_norm] eps = 0.5\n[silu]\n[dropout] p = 0.25\n[identity] name = a\n"
                       "[linear] name = b, out = 16, init = kaiming_normal\n[add] from = a\n[mul] from = a\n[hf_conv1d] out = 16, std = 0.5\n"
                       "[linear] tied = b\n" + end + "[metric] type = accuracy\n",
        "lines": "; comment\n# too\n[flatten] ; behind\r\n\t[linear]\r\n  out = 4 # behind\n" + end,
        "byte_order_mark": "\ufeff[flatten]\n[linear] out = 4\n" + end,
        "mse": "[input] field = numbers\n[linear] out = 4\n[loss]\ntype = mse\nfield = numbers\n",
        "pairs": "[conv2d] out = 4, kernel = 3x2, stride = 2x1, padding = 1x0\n[batch_norm2d] eps = 1e-3, momentum = 0.01\n"
                 "[leaky_relu] negative_slope = 0.1\n[max_pool2d] kernel = 1x2\n[adaptive_avg_pool2d] out = 2x1\n[flatten]\n"
                 "[layer_norm] eps = 0.1\n[linear] out = 4\n" + end,
        "weights": "[flatten]\n[linear] out = 4\n[loss] type = cross_entropy, weight = 1, 0.5,2 , 0, ignore_index = 3\n"
                   "[metric] type = top5\n[metric] type = f1\n[metric] type = confusion\n",
        "smooth_l1": "[input] field = numbers\n[linear] out = 4\n[loss] type = smooth_l1, beta = 0.5, field = numbers\n"
                     "[metric] type = mae\n[metric] type = r2\n",
        "bce": "[input] field = numbers\n[linear] out = 4\n[loss] type = bce_with_logits, field = numbers\n[metric] type = f1\n",
        "both_ways": "[embedding] count = 4, features = 12\n[attention] heads = 2, causal = no\n" + end,
        "repeats": "[flatten]\n[repeat] times = 2, name = a\n[repeat] times = 3, name = b.c\n[linear] out = 4, name = x\n"
                   "[linear] out = 4, from = x\n[end]\n[end]\n" + end,
        "from_outside": "[flatten] name = a\n[repeat] times = 2, name = b.c\n[linear] out = 4, from = a, name = x\n"
                        "[add] from = b.c.0.x\n[end]\n" + end,
        "unnamed_repeat": "[flatten]\n[repeat] times = 3\n[linear] out = 4\n[end]\n" + end,
        "smoothing": "[flatten]\n[linear] out = 8\n[loss] type = cross_entropy, label_smoothing = 0.1, classes = 6\n",
    }
    bad = {
        "unknown_layer": "[lineer]\n", "unknown_key": "[linear] uot = 4\n", "no_bracket": "[relu\n", "no_name": "[]\n",
        "key_first": "out = 4\n", "no_equals": "[relu]\nrelu\n", "no_key": "[relu] = 4\n", "no_value": "[linear] out =\n",
        "no_comma": "[linear] out = 4 bias = no\n", "twice": "[linear] out = 4, out = 4\n", "control": "[relu]\n\1\n",
        "long_line": "[relu] ;" + "x" * 1100 + "\n", "many_keys": "[relu]\n" + "".join(f"k{i} = 1\n" for i in range(20)),
        "many_sections": "[relu]\n" * 4200, "number": "[linear] out = 1e99\n", "part": "[linear] out = 1.5\n",
        "hex": "[dropout] p = 0x1p-1\n", "choice": "[gelu] approximate = erf\n", "name": "[relu] name = a..b\n",
        "pair": "[conv2d] out = 4, kernel = 3x\n", "pair_three": "[conv2d] out = 4, kernel = 3x3x3\n",
        "no_kernel": "[conv2d] out = 4\n", "no_out": "[flatten]\n[linear]\n", "no_weight": "[flatten] name = a\n[linear] tied = a\n",
        "tied_out": "[flatten]\n[linear] name = a, out = 4\n[linear] tied = a, out = 4\n",
        "no_from": "[add]\n", "unknown_from": "[relu] name = abc\n[add] from = abd\n", "name_taken": "[relu] name = 1\n[relu]\n",
        "shapes": "[flatten] name = a\n[linear] out = 4\n[add] from = a\n", "groups": "[conv2d] out = 4, kernel = 1, groups = 2\n",
        "field": "[input] field = picture\n", "init": "[flatten]\n[linear] out = 4, init = normal x\n",
        "init_empty": "[flatten]\n[linear] out = 4, init = normal 1,, normal 2\n", "deep": "[repeat] times = 2\n" * 9,
        "many_layers": "[repeat] times = 4096\n" * 2 + "[relu]\n" + "[end]\n" * 2, "open": "[repeat] times = 2\n[relu]\n",
        "empty_repeat": "[repeat] times = 2\n[end]\n", "end": "[end]\n", "late_input": "[relu]\n[input] field = image\n",
        "long_names": "[flatten]\n" + f"[repeat] times = 1, name = {'a' * 90}\n" * 2 + "[linear] out = 4\n" + "[end]\n" * 2,
        "long_layer": f"[flatten]\n[repeat] times = 1, name = {'a' * 90}\n[linear] out = 4, name = {'b' * 90}\n[end]\n",
    }
    for name, text in good.items():
        put("net", name, text)
    for name, text in bad.items():
        put("net", "bad_" + name, text + end)
    put("net", "bad_empty", "; nothing\n")
    put("net", "bad_no_loss", "[relu]\n")
    put("net", "bad_two_losses", "[flatten]\n" + end + end)
    put("net", "bad_layer_below", "[flatten]\n" + end + "[relu]\n")
    put("net", "bad_metric_above", "[flatten]\n[metric] type = accuracy\n" + end)
    put("net", "bad_loss_inside", "[repeat] times = 2\n[relu]\n" + end + "[end]\n")
    put("net", "bad_nul", b"[relu]\0\n")
    for name, more in (("weight", ", weight = 1, -2\n"), ("weights_few", ", weight = 1, 2\n"), ("beta", ", beta = 2\n"),
                       ("weights_many", ", weight = " + ",".join("1" * 480) + "\n"), ("metric", "\n[metric] type = mae\n")):
        put("net", "bad_" + name, "[flatten]\n[linear] out = 4\n[loss] type = cross_entropy" + more)


# ---- plugin files ----------------------------------------------------------------------------------------------------
SOURCE = """
#include <ddpengine/sampler.h>
#define SHOWN __attribute__((visibility("default")))
%s
"""


def seeds_elf():
    right = "DDP_PLUGIN_EXPORT const ddp_plugin ddp_plugin_desc = {DDP_PLUGIN_HEAD(SAMPLER, 0)};"
    more = right + "".join(f"SHOWN int s{i};" for i in range(20))
    with tempfile.TemporaryDirectory() as folder:
        def build(source, *flags):
            path = pathlib.Path(folder)
            (path / "a.c").write_text(SOURCE % source)
            subprocess.run(["gcc", "-shared", "-fPIC", "-nostdlib", "-Os", "-s", "-Wl,-z,noseparate-code", "-Wl,--build-id=none", "-Wl,-z,norelro",
                            "-fno-asynchronous-unwind-tables", "-Wl,-z,max-page-size=64", "-I", ROOT / "core/include", *flags, "-o", path / "a.so", path / "a.c"], check=True)
            return (path / "a.so").read_bytes()

        good = build(right)
        sysv = build(right, "-Wl,--hash-style=sysv")
        put("elf", "gnu_hash", good)
        put("elf", "sysv_hash", sysv)
        put("elf", "more_symbols", build(more))
        put("elf", "more_symbols_sysv", build(more, "-Wl,--hash-style=sysv"))
        for what, other in {"abi": ".abi = 99", "size": ".struct_size = 10", "kind": ".kind = 99", "magic": ".magic = 1",
                            "kind_abi": ".kind_abi = 99", "services": ".services = 99999"}.items():
            put("elf", "other_" + what, build(right.replace("0)}", "0), " + other + "}"), "-Wno-override-init"))
        put("elf", "bad_function", build("SHOWN int ddp_plugin_desc(void) { return 1; }"))
        put("elf", "bad_small", build("SHOWN const int ddp_plugin_desc = 1;"))
        put("elf", "bad_zeros", build("SHOWN ddp_plugin ddp_plugin_desc;"))
        put("elf", "bad_absolute", build("SHOWN int other;", "-Wl,--defsym=ddp_plugin_desc=64"))
        put("elf", "bad_none", build("SHOWN int other;"))
        put("elf", "bad_none_sysv", build("SHOWN int other;", "-Wl,--hash-style=sysv"))
        put("elf", "bad_undefined", build("extern int ddp_plugin_desc; SHOWN int *other = &ddp_plugin_desc;"))
    put("elf", "bad_no_elf", b"#!/bin/sh\n")
    put("elf", "bad_empty", b"")
    put("elf", "bad_short", good[:40])
    put("elf", "bad_cut", good[:len(good) // 2])

    def changed(name, at, data, base=None):
        base = good if base is None else base
        put("elf", name, base[:at] + data + base[at + len(data):])

    changed("bad_class", 4, b"\1")
    changed("bad_order", 5, b"\2")
    for name, machine in {"386": 3, "arm": 40, "aarch64": 183, "riscv": 243, "power": 21, "s390": 22, "other": 999}.items():
        changed("bad_machine_" + name, 18, struct.pack("<H", machine))
    changed("bad_executable", 16, b"\2\0")
    changed("bad_phentsize", 54, b"\1\0")
    changed("bad_phnum", 56, b"\0\0")
    changed("bad_phnum_many", 56, b"\xff\0")
    changed("bad_phnum_too_many", 56, b"\1\1")
    changed("bad_phoff", 32, struct.pack("<Q", 2**63))
    phoff, phnum = struct.unpack_from("<Q", good, 32)[0], struct.unpack_from("<H", good, 56)[0]
    for i in range(phnum):
        at = phoff + 56 * i
        kind = struct.unpack_from("<I", good, at)[0]
        if kind == 2:
            changed("bad_no_dynamic", at, b"\6\0\0\0")
            changed("bad_dynamic_address", at + 16, struct.pack("<Q", 2**40))
            changed("dynamic_long", at + 32, struct.pack("<Q", 2**30))
            changed("bad_dynamic_empty", at + 32, struct.pack("<Q", 0))
            dynamic = struct.unpack_from("<Q", good, at + 8)[0]
        if kind == 1:
            changed(f"bad_load_{i}_size", at + 32, struct.pack("<Q", 16))
            changed(f"bad_load_{i}_offset", at + 8, struct.pack("<Q", 2**63))
    for k in range(12):
        tag, value = struct.unpack_from("<QQ", good, dynamic + 16 * k)
        if tag in (5, 6, 10, 0x6ffffef5):
            changed(f"bad_dynamic_{tag:x}", dynamic + 16 * k + 8, struct.pack("<Q", 2**50))
            changed(f"bad_dynamic_{tag:x}_absent", dynamic + 16 * k, struct.pack("<Q", 0x6000))
        if tag == 0x6ffffef5:
            changed("bad_hash_no_buckets", value, bytes(4))
            changed("bad_hash_many_buckets", value, b"\xff" * 4)
            changed("bad_hash_bloom", value + 8, b"\xff" * 4)
            changed("bad_hash_first", value + 4, b"\xff" * 4)


# ---- images, .tar files, JSON lines ----------------------------------------------------------------------------------
IMAGES = ROOT / "tests/parity/vectors/images"


def seeds_image():
    small = ("tiny.jpg", "one.jpg", "progressive_420.jpg", "gray.jpg", "cmyk.jpg", "exif_6.jpg", "exif_7.jpg", "odd.webp",
             "lossless.webp", "alpha.webp", "exif_6.webp", "exif_8.png", "interlaced.png", "interlaced_palette.png",
             "gray_2_bits.png", "palette_4_bits.png", "gray_alpha_16_bits.png", "rgba.png", "palette_clear.png")
    for name in small:
        data = (IMAGES / name).read_bytes()
        put("image", name.replace(".", "_"), b"\0" + data)
    for name in ("tiny.jpg", "odd.webp", "exif_8.png", "progressive_420.jpg"):
        data = (IMAGES / name).read_bytes()
        put("image", "bad_cut_" + name.replace(".", "_"), b"\1" + data[:len(data) * 2 // 3])
    data = (IMAGES / "exif_6.jpg").read_bytes()
    at = data.index(b"II*\0" if b"II*\0" in data else b"MM\0*")
    for name, change in {"offset": (4, b"\xff\xff\xff\xff"), "type": (12, b"\0\0"), "value": (18, b"\xff\xff"), "magic": (0, b"XX")}.items():
        put("image", "exif_" + name, b"\0" + data[:at + change[0]] + change[1] + data[at + change[0] + len(change[1]):])
    data = (IMAGES / "tiny.jpg").read_bytes()
    at = data.index(b"\xff\xc0")
    put("image", "bad_bomb_jpg", b"\0" + data[:at + 5] + b"\xff\xff\xff\xff" + data[at + 9:])
    put("image", "bad_two_components", b"\0" + data[:at + 9] + b"\2" + data[at + 10:])
    data = (IMAGES / "rgb.png").read_bytes()
    head = b"IHDR" + struct.pack(">IIBBBBB", 2**31 - 1, 2**31 - 1, 8, 2, 0, 0, 0)
    put("image", "bad_bomb_png", b"\0" + data[:12] + head + struct.pack(">I", zlib.crc32(head)) + data[33:])
    put("image", "bad_nothing", b"\0text")
    put("image", "bad_skipped", b"\2text")
    put("image", "bad_animation", b"\0RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0\x02\0\0\0\0\0\0\0\0\0ANIM\0\0\0\0")


def seeds_image_list():
    texts = {"tabs": "a\tx\nb\t1\n", "commas": "a,0\r\n\"b\",3\r\n\r\n", "mark": "\ufeffa,red\nb,blue", "bad_empty": "",
             "bad_no_label": "a\tx\nb\n", "bad_no_file": "a\tx\nc\tx\n", "bad_first": "path,label\na,1\n", "bad_nul": "a\t\0x\n",
             "bad_blank": " \t \n", "bad_long": "a" * 9000, "bad_long_path": "a" * 5000 + "\tx\n", "bad_folder": ".\t1\n",
             "absolute": "/proc/self/exe\t1\n", "quotes": "\"a\"\t\"1\"\n", "large_number": "a,99999999\nb,1\n"}
    for name, text in texts.items():
        put("image_list", name, b"\0" + text.encode())
    put("image_list", "classes", b"\1a\tx\nb\t1\n")
    put("image_list", "bad_class", b"\1a\ty\n")
    put("image_list", "split", b"\2a\tx\nb\tx\n")
    put("image_list", "split_alone", b"\2a\tx\n")


def tar_of(*members, form=tarfile.PAX_FORMAT):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as t:
        for name, data, *kind in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            if kind:
                info.type, info.linkname = kind[0], "a.png"
            t.addfile(info, io.BytesIO(data))
    return out.getvalue().rstrip(b"\0") + bytes(1024)


def seeds_tar():
    image = (IMAGES / "one.jpg").read_bytes()
    two = (("a.jpg", image), ("a.cls", b"0"), ("b.cls", b"1\n"), ("b.jpg", image))
    put("tar", "two", b"\0" + tar_of(*two))
    put("tar", "gnu", b"\0" + tar_of(*two, form=tarfile.GNU_FORMAT))
    put("tar", "ustar", b"\0" + tar_of(*two, form=tarfile.USTAR_FORMAT))
    put("tar", "gzip", b"\0" + gzip.compress(tar_of(*two), mtime=0))
    put("tar", "bad_gzip", b"\0" + gzip.compress(tar_of(*two), mtime=0)[:-20])
    put("tar", "bad_bomb", b"\0" + gzip.compress(bytes(2 << 20), mtime=0))
    put("tar", "bad_zstd", b"\0\x28\xb5\x2f\xfd\0\0\0")
    put("tar", "long_names", b"\0" + tar_of(("d" * 200 + "/a.jpg", image), ("d" * 200 + "/a.cls", b"x")))
    put("tar", "long_names_gnu", b"\0" + tar_of(("d" * 200 + "/a.jpg", image), ("d" * 200 + "/a.cls", b"x"), form=tarfile.GNU_FORMAT))
    put("tar", "links", b"\0" + tar_of(*two, ("c.jpg", b"", tarfile.SYMTYPE), ("d.jpg", b"", tarfile.LNKTYPE), ("e", b"", tarfile.DIRTYPE),
                                        ("f.jpg", b"", tarfile.FIFOTYPE)))
    put("tar", "others", b"\0" + tar_of(("._a.jpg", b"x"), ("a.seg.png", b"x"), ("a.txt", b"x"), ("README", b"x"), *two))
    put("tar", "json", b"\1" + tar_of(("a.jpg", image), ("a.json", b'{"label": "x", "n": 1}'), ("b.jpg", image), ("b.json", b'{"label": 7}')))
    put("tar", "bad_json", b"\1" + tar_of(("a.jpg", image), ("a.json", b'{"label": [')))
    put("tar", "bad_twice", b"\0" + tar_of(*two, two[0], two[1]))
    put("tar", "bad_two_images", b"\0" + tar_of(("a.jpg", image), ("a.png", image), ("a.cls", b"1")))
    put("tar", "bad_two_labels", b"\0" + tar_of(("a.cls", b"1"), ("a.CLS", b"1"), ("a.jpg", image)))
    put("tar", "bad_no_label", b"\0" + tar_of(("a.jpg", image)))
    put("tar", "bad_label", b"\0" + tar_of(("a.jpg", image), ("a.cls", b" \n")))
    put("tar", "bad_long_label", b"\0" + tar_of(("a.jpg", image), ("a.cls", b"x" * 5000)))
    put("tar", "bad_image", b"\0" + tar_of(("a.jpg", image[:30]), ("a.cls", b"1")))
    put("tar", "bad_none", b"\0" + tar_of(("a.txt", b"1")))
    whole = tar_of(*two, form=tarfile.USTAR_FORMAT)
    put("tar", "bad_cut", b"\0" + whole[:1100])
    put("tar", "bad_checksum", b"\0" + whole[:1700] + b"zz" + whole[1702:])
    put("tar", "bad_text", b"\0" + b"no tar file at all " * 40)


def seeds_jsonl():
    line = json.dumps({"text": "A text, with \u00e9 and \n", "id": 3}) + "\n"
    files = {"plain": line * 4, "other_keys": json.dumps({"id": 1, "text": "x" * 40, "more": [1, {"text": 2}]}) + "\n",
             "blank_lines": "\n \r\n" + line * 2, "no_newline": line + line.rstrip(), "mark": "\ufeff" + line * 2,
             "zeros": json.dumps({"text": "a\0b" * 20}) + "\n", "bad_number": line + json.dumps({"text": 3}), "bad_array": "[1]\n",
             "bad_json": line + "{", "bad_twice": '{"text": "a", "text": "b"}\n', "bad_utf8": b'{"text": "\xff"}\n', "bad_empty": "\n",
             "bad_short": json.dumps({"text": "x"}), "bad_deep": "[" * 3000, "emoji": json.dumps({"text": "\U0001f600" * 20})}
    for name, text in files.items():
        data = text if isinstance(text, bytes) else text.encode()
        put("jsonl", name, b"\0\0\7\0" + data)
        if name in ("plain", "bad_json", "bad_utf8"):
            put("jsonl", name + "_skip", b"\1\1\7\1" + data + (line.encode() if name == "bad_utf8" else b""))
    put("jsonl", "bad_long_line", b"\0\2\7\0" + line.encode() * 2)
    put("jsonl", "none_between", b"\2\0\3\4" + line.encode() * 3)
    put("jsonl", "bad_part", b"\2\0\3\10" + line.encode() * 3)


def seeds_sft():
    alpaca = json.dumps({"instruction": "ab", "input": "b", "output": "a b", "system": "e", "history": [["a", "b"]]})
    chat = json.dumps({"conversations": [{"from": "system", "value": "e"}, {"from": "human", "value": "a"}, {"from": "gpt", "value": "ab"},
                                         {"from": "observation", "value": "b"}, {"from": "gpt", "value": "u"}]})
    messages = json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "system": None})
    own = json.dumps({"user": [{"token": "u"}, "{{content}} {{idx}}"], "assistant": ["{{content}}"], "prefix": [{"special": "bos_token"}],
                      "system": ["e{{content}}"], "observation": ["b{{content}}"], "default_system": "a", "stop_words": ["u", "?"],
                      "efficient_eos": True, "replace_eos": False, "system_in_user": False})
    fused = json.dumps({"system": ["<{{content}}>"], "system_in_user": True, "stop_words": ["u"], "replace_eos": True})

    def one(name, form, data, packing=0, flags=0, length=30, rows=3, template=""):
        data = data if isinstance(data, bytes) else data.encode()
        put("sft", name, bytes([form + 4 * packing, flags, length, rows]) + struct.pack("<H", len(template)) + template.encode() + data)

    for n, row in enumerate((alpaca, chat, messages, json.dumps({"text": "a b ab" * 9}))):
        for packing in range(3):
            one(f"form{n}_pack{packing}", n, "\n".join([row] * 5), packing)
        one(f"form{n}_array", n, "[" + ",\n ".join([row] * 4) + "]\n", flags=4)
        one(f"form{n}_short", n, row + "\n" + row, length=3)
        one(f"form{n}_own", n, row, template=own, flags=4)
        one(f"form{n}_own_packed", n, "\n".join([row] * 7), 2, template=own)
        one(f"form{n}_fused", n, row, template=fused, flags=2)
        one(f"form{n}_skip", n, row + "\n{}\n[1]\n" + row + "\n{", flags=1)
    one("bad_both", 0, alpaca, flags=6)
    one("bad_long", 0, json.dumps({"instruction": "a" * 300, "output": "b"}), flags=8)
    for name, data in {"open": "[" + alpaca, "comma": "[" + alpaca + ",]", "none": "[]", "after": "[" + alpaca + "] 1", "scalars": '["a", 1, true]',
                       "text": '["a\\"]", {}]', "utf8": b'{"instruction": "\xff"}', "deep": "[" * 3000, "twice": "[" + alpaca + alpaca + "]"}.items():
        one("bad_" + name, 0, data)
        one("skip_" + name, 0, data, flags=1)
    for name, template in {"key": '{"x": 1}', "slots": '{"user": 1}', "slot": '{"user": [1]}', "content": '{"user": []}', "prefix": '{"prefix": ["{{content}}"]}',
                           "json": "{", "token": '{"user": [{"token": "zz"}, "{{content}}"]}', "stop": '{"stop_words": [""]}', "eos": '{"replace_eos": true}'}.items():
        one("template_" + name, 0, alpaca, template=template)


def seeds_import():
    info = {"a": {"file_name": "a.json"}, "b": {"file_name": "b.jsonl", "formatting": "sharegpt", "columns": {"messages": "m"}, "tags": {"role_tag": "role"}},
            "c": {"hf_hub_url": "x/y"}, "d": {"file_name": "d.json", "num_samples": 3}, "e": {"file_name": "."}, "f": 1}
    sft = ("stage: sft\nfinetuning_type: lora\nlora_rank: 8\nlora_target: all\ndataset: a\ntemplate: llama3\ncutoff_len: 512\nval_size: 0.1\n"
           "eval_strategy: steps\neval_steps: 5\nbf16: true\noutput_dir: o\nlearning_rate: 1.0e-4\nnum_train_epochs: 3.0\nwarmup_ratio: 0.1\n"
           "lr_scheduler_type: cosine\nsave_steps: 5\nreport_to: none\nuse_dora: true\nfrob: 1\nadam_beta1: 0.8\n")

    def one(name, yaml, data=json.dumps(info)):
        put("import", name, struct.pack("<H", len(yaml)) + yaml.encode() + data.encode())

    one("sft", sft)
    one("pt", "stage: pt\ndataset: a\nmax_steps: 10\nwarmup_ratio: 0.1\npacking: false\n")
    one("merge", "adapter_name_or_path: x\nexport_dir: y\nexport_size: 5\n")
    one("list", "stage: sft\ndataset: [a, d]\nlora_target:\n  - q\n  - k\nneat_packing: yes\n")
    for name in "bcdef":
        one("data_" + name, f"stage: sft\ndataset: {name}\n")
    for name, text in {"stage": "stage: dpo", "type": "finetuning_type: oft", "twice": "a: 1\na: 2", "map": "save_steps: {a: [1, {b: 2}]}", "alias": "a: &x 1\nb: *x",
                       "nested": "dataset: [[a]]", "list": "- 1", "tab": "\ta: 1", "second": "a: 1\n---\nb: 2\n", "number": "learning_rate: x",
                       "text": "default_system: \"a\\nb\"\nstage: sft\ndataset: a", "tag": "a: !!binary aGk=", "zero": "a: \"\\0\"", "open": "a: ["}.items():
        one("bad_" + name, text)
    one("bad_info", sft, "{")
    one("bad_info_list", sft, "[]")


def seeds_regex():
    gpt4 = r"(?i:'s|'t|'ll)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    llama4 = r"[^\r\n\p{L}]?[\p{Lu}\p{M}]*[\p{Ll}\p{Lo}]+(?i:'s|'t|'re|'ll)?|[\p{Lu}]+(?i:'s|'t)?|\p{N}{1,}|[\W\d]|\P{Lu}"
    text = "It's THEY'LL  x\n 123 \u00e9\u4e00\U00010d51\U00010d71\U00010d41.\r\n"
    for name, regex in {"gpt4": gpt4, "llama4": llama4, "classes": r"[a-c\-x[y]]+|\D{2,3}|[^\w\P{L}]|\p{^N}|[]a]|\W|\d|[\p{Ll}&&[a-f]]",
                        "lookbehind": r"(?<=\w)\d+|\S", "bad": "(a", "bad_class": "[z-a]", "empty": "", "folded": "(?i:[sk]|x)y?(?i:k)",
                        "bad_property": r"\p{Nope}|\p{", "numbers": "a{2}b{1,2}c{0,}|d{,2}|e{99999}", "tails": "a(?i:b|c)?|d(?i:)?|e(?i:f)?+",
                        "lengths": r"[^L]+(?i:'s|'t|'ll)|[^\S\n]?(?i:'s|x)"}.items():
        put("regex", name, regex.encode() + b"\0" + text.encode())


def seeds_pieces():
    def number(n):
        out = b""
        while n > 127:
            out, n = out + bytes([n & 127 | 128]), n >> 7
        return out + bytes([n])

    def field(key, value):
        if isinstance(value, float):
            return number(key << 3 | 5) + struct.pack("<f", value)
        if isinstance(value, int):
            return number(key << 3) + number(value)
        value = value if isinstance(value, bytes) else value.encode()
        return number(key << 3 | 2) + number(len(value)) + value

    def model(kind, pieces, *normalizer):
        head = b"".join(field(1, field(1, p) + field(2, float(s)) + field(3, t)) for p, s, t in pieces)
        return head + field(2, field(3, kind) + field(35, 1)) + field(3, b"".join(normalizer) or field(1, "identity"))

    first = [("<unk>", 0, 2), ("<s>", 0, 3), ("</s>", 0, 3)]
    bytes_too = [("<0x%02X>" % i, 0, 6) for i in range(256)]
    words = [("\u2581", -1, 1), ("a", -2, 1), ("b", -3, 1), ("ab", -4, 1), ("\u2581a", -5, 1), ("\u4e00", -6, 1), ("<x>", -7, 4)]
    text = "a b ab<x> \u00e9\u4e00\n 12".encode()
    plain = field(1, "identity") + field(4, 0)
    tied = [("\u2581", -1, 1), ("a", -1, 1), ("b", -1, 1), ("ab", -1, 1), ("ba", -1, 1), ("\u2581a", -1, 1), ("a\u2581", -1, 1), ("aba", -1, 1)]
    trie = {97: 97 | 1 << 8 | (97 ^ 1) << 10, 1: 1 << 31}  # "a" becomes the text at 0

    def charsmap(units, texts=b"b\0"):
        array = b"".join(struct.pack("<I", units.get(i, 0)) for i in range(256))
        return field(2, struct.pack("<I", len(array)) + array + texts)

    mapped = charsmap(trie)
    bad_unit, bad_text = charsmap({**trie, 97: 97 | 1 << 8 | 256 << 10}), charsmap({**trie, 1: 1 << 31 | 2})
    for name, data in {"mapped": model(2, first + words, mapped), "bad_unit": model(2, first + words, bad_unit),
                       "bad_text": model(1, first + words, bad_text), "bad_group": model(2, first + words, b"\x3b\x3c" + bad_unit),
                       "bpe": model(2, first + bytes_too + words), "plain": model(2, first + bytes_too + words[:-1], plain),
                       "tied": model(2, first + bytes_too + tied, plain), "unprefixed": model(2, first + bytes_too + tied[:6], plain, field(3, 0)),
                       "unigram": model(1, first + bytes_too + words),
                       "word": model(3, first + bytes_too + words), "char": model(4, first + bytes_too + words),
                       "prefix": model(2, first + bytes_too + words, field(1, "identity"), field(3, 0), field(4, 0)),
                       "bad_unknown": model(2, first[1:] + bytes_too + words), "bad_twice": model(2, first + bytes_too + words + words),
                       "bad_cut": model(2, first + bytes_too + words)[:90], "bad_map": model(2, first + bytes_too + words, field(2, bytes(40)))}.items():
        put("pieces", name, struct.pack("<H", len(data)) + data + text)


def seeds_adapter():
    good = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "use_rslora": False, "bias": "none", "rank_pattern": {}, "use_dora": False}
    put("adapter", "good", json.dumps(good))
    put("adapter", "rslora", json.dumps({**good, "use_rslora": True, "lora_alpha": 1.5}))
    changes = {"bad_type": {"peft_type": "LOHA"}, "bad_bias": {"bias": "all"}, "bad_dora": {"use_dora": True}, "bad_rank": {"r": 0},
               "bad_rank_text": {"r": "8"}, "bad_alpha": {"lora_alpha": None}, "bad_huge": {"r": 1e300}, "bad_pattern": {"rank_pattern": {"a": 4}},
               "bad_indices": {"trainable_token_indices": [1]}}
    for name, change in changes.items():
        put("adapter", name, json.dumps({**good, **change}))
    put("adapter", "bad_array", "[1]")
    put("adapter", "bad_json", "{")
    put("adapter", "bad_twice", '{"r": 8, "r": 9}')
    put("adapter", "bad_utf8", b'{"peft_type": "\xff"}')
    put("adapter", "bad_deep", "[" * 3000)
    put("adapter", "bad_empty", "")


def seeds_gguf():
    def case(name, kind, first, second="{}"):
        first, second = (x if isinstance(x, bytes) else (x if isinstance(x, str) else json.dumps(x, separators=(",", ":"))).encode() for x in (first, second))
        put("gguf", name, struct.pack("<BH", kind, len(first)) + first + second)

    for name in ("bpe", "prefix", "unigram", "bad_cut", "bad_unknown"):
        data = (HERE / "corpus/pieces" / name).read_bytes()
        case(name, 0, data[2:2 + struct.unpack("<H", data[:2])[0]], {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True,
                                                                    "added_tokens_decoder": {"299": {"content": "<new>", "special": True}, "x": {}}})
    words = {"a": 0, "b": 1, "ab": 2, "<0x0A>": 3, "<unk>": 4}
    model = {"type": "BPE", "vocab": words, "merges": ["a b"], "unk_token": "<unk>"}
    level = {"type": "ByteLevel", "use_regex": True}
    added = [{"id": 5, "content": "<s>", "special": True}, {"id": 6, "content": "x\u2581y\u2581", "special": False}]
    around = {"type": "Sequence", "processors": [{"type": "ByteLevel"}, {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]}]}
    whole = {"model": model, "added_tokens": added, "pre_tokenizer": level, "post_processor": around}
    case("json", 1, whole, {"bos_token": "<s>", "pad_token": "ab", "unk_token": 3})
    case("fallback", 1, {**whole, "model": {**model, "byte_fallback": True, "merges": [["a", "b"]]}, "pre_tokenizer": None})
    case("spaces", 1, {**whole, "model": {**model, "merges": [["a ", "b"]]}})
    case("digits", 1, {**whole, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, level]}})
    split = {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}"}}
    case("deepseek", 1, {**whole, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, split, split, level]}})
    case("bad_split", 1, {**whole, "pre_tokenizer": split})
    case("bad_merges", 1, {**whole, "model": {**model, "merges": ["ab"]}})
    case("bad_id", 1, {**whole, "model": {**model, "vocab": {"a": 300}}})
    case("bad_added", 1, {**whole, "added_tokens": [3]})
    case("bad_vocab", 1, {**whole, "model": {**model, "vocab": []}})
    case("bad_json", 1, "[]")
    case("bad_config", 1, whole, "[")
    case("bad_wire", 0, bytes([7 << 3 | 1]) + bytes(8) + bytes([7 << 3 | 3]))
    case("bad_fixed", 0, bytes([10, 3, 2 << 3 | 5, 0, 0]))
    case("bad_number", 0, bytes([0xff] * 12))
    case("bad_piece", 0, bytes([10, 2, 3 << 3, 9]))
    case("gpt2", 2, {**words, "<|endoftext|>": 5}, "#version: 0.2\na b\n\nnone\n")
    case("bad_gpt2", 2, {"a": "b"}, "a b\n")


def main():
    for name, function in sorted(globals().items()):
        if name.startswith("seeds_"):
            function()
    return 0


if __name__ == "__main__":
    sys.exit(main())
