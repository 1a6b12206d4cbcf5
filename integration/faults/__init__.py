"""Everything that can break is broken on purpose, and every message is accounted for: ``./run faults``."""
