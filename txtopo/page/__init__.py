"""The page: shows a run in a browser, from the run's journal, and changes nothing."""

ERROR_PAGE = "watching.html"
