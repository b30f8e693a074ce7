"""Values as people read them in a table: the functions of `slicemgr.human`, which the pages use, too."""

from slicemgr.human import check, number, printable, rate, size, span, text, when

__all__ = ["check", "number", "printable", "rate", "size", "span", "text", "when"]
