// No key is left out for its score. See skip_rows for the choice.
