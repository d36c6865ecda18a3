"""TensorBoard's event files, read record by record: checksums, then the messages of core/observe/tensorboard/event.proto."""
import struct

TABLE = []
for n in range(256):
    for _ in range(8):
        n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
    TABLE.append(n)


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    """The messages; a record that a kill has cut at the end is left out."""
    at = 0
    while at + 12 <= len(data):
        length, crc = struct.unpack_from("<QI", data, at)
        assert masked_crc(data[at:at + 8]) == crc, f"checksum of the length at {at}"
        if at + 16 + length > len(data):
            return
        message = data[at + 12:at + 12 + length]
        assert masked_crc(message) == struct.unpack_from("<I", data, at + 12 + length)[0], f"checksum of the message at {at}"
        yield message
        at += 16 + length


def fields(message):
    """(number, value): an int, 4 or 8 bytes, or the bytes of what has a length."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
            continue
        size = varint() if kind == 2 else {1: 8, 5: 4}[kind]
        yield key >> 3, message[at:at + size]
        at += size


def value_of(message):
    tag, number, text = "", None, None
    for key, v in fields(message):
        if key == 1:
            tag = v.decode()
        elif key == 2:
            number = struct.unpack("<f", v)[0]
        elif key == 8:
            text = dict(fields(v))[8].decode()
    return tag, number, text


def floats(data):
    return list(struct.unpack(f"<{len(data) // 8}d", data))


def histograms(folder):
    """{tag: {step: {"min": .., "max", "num", "sum", "sum_squares", "limits": [..], "counts": [..]}}}"""
    found = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for message in records(path.read_bytes()):
            event = dict(fields(message))
            for _, value in fields(event.get(5, b"")):
                value = dict(fields(value))
                if 5 not in value:
                    continue
                h = dict(fields(value[5]))
                numbers = {name: struct.unpack("<d", h.get(key, bytes(8)))[0]
                           for key, name in enumerate(("min", "max", "num", "sum", "sum_squares"), 1)}
                found.setdefault(value[1].decode(), {})[event[2]] = {**numbers, "limits": floats(h[6]), "counts": floats(h[7])}
    return found


def read(folder):
    """{tag: {step: float32}}, {tag: [text]}; values that a later record makes void are gone, as TensorBoard has it."""
    scalars, texts = {}, {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        messages = list(records(path.read_bytes()))
        assert dict(fields(messages[0]))[3] == b"brain.Event:2", messages[0]
        for message in messages[1:]:
            event = dict(fields(message))
            step = event.get(2, 0)
            if 7 in event:
                for steps in scalars.values():
                    for old in [s for s in steps if s >= step]:
                        del steps[old]
            for _, value in fields(event.get(5, b"")):
                tag, number, text = value_of(value)
                if number is None and text is None:
                    continue  # a histogram
                if text is None:
                    scalars.setdefault(tag, {})[step] = number
                else:
                    texts.setdefault(tag, []).append(text)
    return scalars, texts
