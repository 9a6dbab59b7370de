"""Train, evaluate, film and report: what the command line and Python users both call.

import slipstream as sl

run = sl.train("racing", steps=10_000_000)
print(sl.evaluate(run)["success_rate"])
sl.film(run)
sl.report(run)

Each stage is a module of its own, so that a training imports no film and no page.
"""
