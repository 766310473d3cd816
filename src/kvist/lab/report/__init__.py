"""The report: one page about a model on this machine. A file for what is measured, drawn, said, and laid out."""
