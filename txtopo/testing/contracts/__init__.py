"""Contracts as functions: each runs an implementation through its promises, and names the broken
promise.

Import ``check_spout``, ``check_store``, ``check_sink``, ``check_exporter`` and
``check_bolt_idempotence`` from ``txtopo.testing``. This package imports nothing: executors import
the parent package, and the checkers need more than executors have.
"""
