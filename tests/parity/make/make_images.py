#!/usr/bin/env python3
"""Writes vectors/images/: files of each kind that the datasets of images read, and images.txt with what Pillow makes of them,
for tests/unit/dataset/test_images.c.

    /usr/bin/python3 tests/parity/make/make_images.py        (Debian: apt-get install python3-pil)
    /usr/bin/python3 tests/parity/make/make_images.py --compare      only compares what Pillow gives with what is stored

A line: NAME, width and height upright, FNV-1a (64 bits) of the pixels of convert("RGB"), and of exif_transpose's."""
import math
import pathlib
import struct
import sys
import zlib

from PIL import Image, ImageOps

OUT = pathlib.Path(__file__).resolve().parents[1] / "vectors/images"
EXIF_HEAD = b"Exif\0\0"


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def picture(width, height):
    """Smooth, with edges, a fine pattern and saturated colors."""
    im = Image.new("RGB", (width, height))
    for y in range(height):
        for x in range(width):
            r = 127 + 127 * math.sin(x / 5.0 + y / 9.0)
            g = 255 * x / width if (x // 7 + y // 5) % 2 else 255 * y / height
            b = (x * 37 + y * 91 + x * y * 3) % 256 if x > width // 2 else 40
            im.putpixel((x, y), (int(r), int(g), int(b)))
    return im


def exif(orientation, big=False):
    e = ">" if big else "<"
    return EXIF_HEAD + (b"MM\0*" if big else b"II*\0") + struct.pack(e + "IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, depth, color, interlaced, palette=b""):
    """A PNG that Pillow cannot write; the samples are a pattern."""
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color]
    limit = min(1 << depth, len(palette) // 3 or 1 << depth)

    def rows(x0, y0, dx, dy):
        data = b""
        for y in range(y0, height, dy):
            bits = "".join(format((x * 5 + y * 3 + c * 11 + x * y * 259) % limit, f"0{depth}b")
                           for x in range(x0, width, dx) for c in range(channels))
            if bits:
                bits += "0" * (-len(bits) % 8)
                data += b"\0" + int(bits, 2).to_bytes(len(bits) // 8, "big")
        return data

    passes = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
    data = b"".join(rows(*p) for p in passes) if interlaced else rows(0, 0, 1, 1)
    head = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, int(interlaced))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + (chunk(b"PLTE", palette) if palette else b"")
            + chunk(b"IDAT", zlib.compress(data, 9)) + chunk(b"IEND", b""))


def write():
    OUT.mkdir(exist_ok=True)
    for old in OUT.iterdir():
        old.unlink()
    im, odd, tiny = picture(96, 70), picture(61, 47), picture(5, 3)
    for s, name in enumerate(("444", "422", "420")):
        im.save(OUT / f"base_{name}.jpg", quality=90, subsampling=s)
        odd.save(OUT / f"odd_{name}.jpg", quality=75, subsampling=s)
        odd.save(OUT / f"progressive_{name}.jpg", quality=60, subsampling=s, progressive=True, optimize=True)
    tiny.save(OUT / "tiny.jpg", quality=20)
    Image.new("RGB", (1, 1), (9, 200, 77)).save(OUT / "one.jpg")
    odd.convert("L").save(OUT / "gray.jpg", quality=80)
    odd.convert("L").save(OUT / "gray_progressive.jpg", quality=80, progressive=True)
    odd.convert("CMYK").save(OUT / "cmyk.jpg", quality=85)
    im.convert("CMYK").save(OUT / "cmyk_progressive.jpg", quality=85, progressive=True)
    for o in range(1, 9):
        odd.save(OUT / f"exif_{o}.jpg", quality=70, exif=exif(o, o % 2 == 0))
    odd.save(OUT / "exif_9.jpg", quality=70, exif=exif(9))
    im.save(OUT / "exif_6.webp", quality=80, exif=exif(6)[len(EXIF_HEAD):])
    odd.save(OUT / "exif_8.png", exif=exif(8)[len(EXIF_HEAD):])
    alpha = odd.copy()
    alpha.putalpha(odd.convert("L"))
    odd.save(OUT / "rgb.png")
    alpha.save(OUT / "rgba.png")
    odd.convert("L").save(OUT / "gray.png")
    alpha.convert("LA").save(OUT / "gray_alpha.png")
    odd.convert("1").save(OUT / "bits.png")
    odd.quantize(50).save(OUT / "palette.png")
    odd.quantize(12).save(OUT / "palette_4_bits.png", bits=4)
    odd.quantize(20).save(OUT / "palette_clear.png", transparency=3)
    odd.convert("L").save(OUT / "gray_clear.png", transparency=80)
    colors = bytes(range(255, 255 - 24, -1))
    for name, args in {"interlaced": (61, 47, 8, 2, True), "interlaced_alpha": (33, 20, 8, 6, True),
                       "interlaced_palette": (29, 31, 4, 3, True, colors), "interlaced_tiny": (2, 1, 8, 0, True),
                       "gray_2_bits": (17, 9, 2, 0, False), "gray_4_bits": (17, 9, 4, 0, False),
                       "rgb_16_bits": (17, 9, 16, 2, False), "rgba_16_bits": (17, 9, 16, 6, True),
                       "gray_alpha_16_bits": (17, 9, 16, 4, False)}.items():
        (OUT / f"{name}.png").write_bytes(png(*args))
    im.save(OUT / "lossy.webp", quality=75)
    odd.save(OUT / "odd.webp", quality=40)
    odd.save(OUT / "lossless.webp", lossless=True)
    alpha.save(OUT / "alpha.webp", quality=75)
    alpha.save(OUT / "alpha_lossless.webp", lossless=True)
    tiny.save(OUT / "tiny.webp", quality=50)


def lines():
    for path in sorted(OUT.iterdir()):
        if path.suffix == ".txt":
            continue
        im = Image.open(path)
        upright = ImageOps.exif_transpose(im).convert("RGB")
        yield (f"{path.name}\t{upright.width}\t{upright.height}\t{fnv(im.convert('RGB').tobytes()):016x}\t"
               f"{fnv(upright.tobytes()):016x}\n")


def main():
    if sys.argv[1:] != ["--compare"]:
        write()
        (OUT / "images.txt").write_text("".join(lines()))
    elif (OUT / "images.txt").read_text() != "".join(lines()):
        sys.exit("Pillow gives other pixels than those that are stored")
    print(f"{len(list(OUT.iterdir())) - 1} images, {sum(p.stat().st_size for p in OUT.iterdir())} bytes")


if __name__ == "__main__":
    main()
