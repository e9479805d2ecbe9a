"""From trace to callable: executors claim calls, and what they claim becomes one Python function."""
