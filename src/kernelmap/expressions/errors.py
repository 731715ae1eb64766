"""What goes wrong in an expression, with the place inside its text."""

from __future__ import annotations


class ExpressionError(ValueError):
    """A malformed or impossible expression. ``offset`` and ``width`` count characters of its text."""

    def __init__(
        self, code: str, message: str, offset: int = 0, width: int = 1, help: str = "", near: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.code, self.message = code, message
        self.offset, self.width = offset, width
        self.help, self.near = help, near
