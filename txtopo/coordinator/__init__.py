"""Which transaction may do what, when. Pure: events go in, commands come out; no clock, no
randomness, no thread."""
