"""Raw run files to report: load, checks, metrics, figures, report; pure from frames on."""
