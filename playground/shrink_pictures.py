"""Makes the pictures of docs/explanation/playground.md small: 200 colours are enough for them."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"


def main() -> None:
    for path in sorted(PICTURES.glob("playground-*.png")):
        Image.open(path).convert("RGB").quantize(200, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main()
