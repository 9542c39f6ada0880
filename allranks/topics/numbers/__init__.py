"""Numbers: floating-point formats of few bits."""
