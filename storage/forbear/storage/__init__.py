"""The durable store: the only place that speaks SQL."""
