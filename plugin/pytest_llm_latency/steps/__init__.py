"""The eight steps of the lab: what each asks, measures, derives and judges."""
