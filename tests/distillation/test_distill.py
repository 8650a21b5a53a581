"""A student learns from teachers; a run that ended continues to the same bits."""
