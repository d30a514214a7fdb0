"""The text of a figure, and a check that it can be read: for tests of pictures."""

from __future__ import annotations

from matplotlib.figure import Figure


def texts_of(figure: Figure) -> list[str]:
    """Return the texts of a figure; check that none is outside or overlaps another, except a test's mark."""
    written = [*figure.texts]
    for axes in figure.axes:
        written += [*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label]
    boxes = [
        (text.get_text(), text.get_window_extent())
        for text in written
        if text.get_text().strip() and text.get_visible()
    ]
    frame = figure.bbox
    for place, (one, box) in enumerate(boxes):
        assert box.x0 >= frame.x0 - 1, one
        assert box.x1 <= frame.x1 + 1, one
        assert box.y1 <= frame.y1 + 1, one
        for two, other in boxes[place + 1 :]:
            assert one == two or "NOT PRIVATE" in one + two or not box.overlaps(other), (one, two)
    return [words for words, _ in boxes]
