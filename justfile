# Commands for contributors; `pip install -c constraints.txt -e '.[test,dev,docs]'` installs what they run.

# list the commands
default:
    @just --list

# what CI runs: all tests except the slow ones
test *arguments:
    pytest {{arguments}}

# only mathematics and files, in less than a minute
quick:
    pytest -m quick

# tests of numbers in nine settings of instructions and threads, about half an hour; a name chooses one
processors *arguments:
    python tests/support/processors.py {{arguments}}

# type errors
types:
    basedpyright

# the documentation as a site, into build/docs
docs:
    .ci/docs

# format and lint
format:
    ruff format
    ruff check --fix
