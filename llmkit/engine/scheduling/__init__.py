"""Many requests over one context: what a step computes, who has a slot, the thread that decodes. Knows no HTTP."""
