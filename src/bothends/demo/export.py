"""Export: ``product,units,revenue`` as the consumers' databases hold it, sorted by code point, exact."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from pathlib import Path

from bothends.demo import money
from bothends.demo.audit import Sums

__all__ = ["read_export", "write_export"]

_HEADER = ["product", "units", "revenue"]


def write_export(path: Path, sums: Mapping[str, Sums]) -> None:
    """Writes the file whole or not at all."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(_HEADER)
            for product in sorted(sums):
                units, revenue = sums[product]
                writer.writerow([product, units, money.plain(revenue)])
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_export(path: Path) -> dict[str, Sums]:
    """What ``write_export`` wrote. Raises ValueError for another header."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file, strict=True)
        if next(reader, None) != _HEADER:
            raise ValueError(f"{path}: the first line must be {','.join(_HEADER)}")
        return {product: Sums(int(units), money.parse(revenue)) for product, units, revenue in reader}
