"""Tables and figures as data, and what writes and draws them. Commands are named in ``catalogue/`` alone."""
