"""Values as people read them in a table: those of `slicemgr.human`, which the pages use as well."""

from slicemgr.human import check, number, printable, rate, size, span, text, when

__all__ = ["check", "number", "printable", "rate", "size", "span", "text", "when"]
