"""House rules that no linter can say, as pure functions from source text to findings.

Standard library only and readable by Python 3.9, so that they run before anything is installed:
`python3 -m tests.repo.tidy`.
"""
