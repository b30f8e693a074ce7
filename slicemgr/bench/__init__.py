"""Experiments: run through the API like any user's work, compared with a baseline of the same run.

One that fills a folder is an `experiment.Experiment`, carried out by `frame.run.carry_out` (`cli.bench.frame`), and a
module with `content(run)` that `pages.CONTENTS` names: tables, plots, aims, metrics and sentences for the report.
"""
