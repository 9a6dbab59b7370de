"""Other libraries: Slipstream's tasks under their trainers, and policies of theirs in our evaluations."""
