"""The doors: how a run is executed. `surehold.engine.runs` holds the run."""
