"""Experiments: they use the API as any client does, and compare with a baseline of the same run.

An experiment with a run folder consists of an `experiment.Experiment`, which `frame.run.carry_out` executes
(`cli.bench.frame`), and of a module in `pages.CONTENTS` whose `content(run)` returns the tables, plots, aims, metrics
and sentences of the report.
"""
