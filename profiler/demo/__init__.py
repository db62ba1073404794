"""A small GPT trained on text of its own, with the profiler attached."""
