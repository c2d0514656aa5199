"""What is drawn anew of a screen: of each widget the lines that changed and are seen, and no others."""

from itertools import pairwise

from textual._compositor import ChopsUpdate, Compositor
from textual.geometry import Region
from textual.strip import Strip


class SparseCompositor(Compositor):
    """Textual's renders all widgets between the first change and the last one: fifty, where a figure changed."""

    def render_partial_update(self) -> ChopsUpdate | None:
        """Widgets come front to back, and fill the chops, which are pieces of lines, that none before them filled."""
        spans = list(self._regions_to_spans(self._dirty_regions))
        self._dirty_regions.clear()
        if not spans:
            return None
        missing: dict[int, set[int]] = {y: set() for y, _, _ in spans}  # by line, where these chops begin
        chops: list[dict[int, Strip | None]] = [{}] * len(self.cuts)  # of other lines nobody asks
        ends: list[list[int]] = [[]] * len(self.cuts)
        for y in missing:
            chops[y], ends[y] = dict.fromkeys(self.cuts[y][:-1]), self.cuts[y][1:]
        for y, x1, x2 in spans:
            missing[y].update(start for start, end in pairwise(self.cuts[y]) if start < x2 and end > x1)
        for widget, (region, clip) in self.visible_widgets.items():
            seen = region.intersection(clip)
            lines = [y for y, starts in missing.items() if seen.y <= y < seen.bottom and _any_in(starts, seen)]
            if lines:
                part = Region(seen.x, lines[0], seen.width, lines[-1] + 1 - lines[0])
                strips = widget.render_lines(part.translate(-region.offset))
                for y in lines:
                    self._fill(chops[y], missing[y], y, seen, strips[y - part.y])
        return ChopsUpdate(chops, spans, ends)

    def _fill(self, line: dict[int, Strip | None], missing: set[int], y: int, seen: Region, strip: Strip) -> None:
        cuts = [cut for cut in self.cuts[y] if seen.x <= cut <= seen.right]
        for start, piece in zip(cuts, strip.divide([cut - seen.x for cut in cuts[1:]]), strict=False):
            if start in missing:
                line[start] = piece
                missing.remove(start)


def _any_in(starts: set[int], seen: Region) -> bool:
    return any(seen.x <= start < seen.right for start in starts)
