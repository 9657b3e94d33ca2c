"""The lines of the report: the contenders of each race, and the ratios between them."""
