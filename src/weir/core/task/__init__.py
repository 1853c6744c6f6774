"""The stream task: one task of one attempt, from trigger to commit, with its channels."""
