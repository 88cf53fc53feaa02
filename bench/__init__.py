"""Benchmarks: one runner, every contender in the same run, figures as ratios. ``python -m bench --help``.

Each family of work is one module with its contenders as small functions. A contender runs in a fresh process, in the
environment that has its packages, so a family imports nothing but this package and the standard library at its top.
"""
