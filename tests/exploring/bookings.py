"""A table of bookings as SQLAlchemy maps it, for handlers that have sessions."""

from __future__ import annotations

from sqlalchemy import Integer, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

__all__ = ["Booking"]


class _Base(DeclarativeBase):
    pass


class Booking(_Base):
    __tablename__ = "bookings"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    order_no: Mapped[str] = mapped_column(Text)
