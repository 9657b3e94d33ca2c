"""The coordinator: a pure state machine that orders the phases of all transactions: events go in,
commands come out; no clock, no randomness, no thread."""
