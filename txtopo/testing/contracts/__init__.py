"""Contracts as functions: each runs an implementation through its promises, and names the broken
promise.

``check_spout``, ``check_store``, ``check_sink`` and ``check_bolt_idempotence`` import from
``txtopo.testing``. Nothing is imported here: executors import the parent package, and the checkers
need more than executors have.
"""
