"""The evaluation report, as HTML and Markdown, and the plots in it."""
