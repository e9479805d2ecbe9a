"""Small models for the tests, one a file, and the cases in which they are tested."""
