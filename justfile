# Commands for contributors; `pip install -c constraints.txt -e '.[test,dev,docs]'` installs what they run.

# list the commands
default:
    @just --list

# what CI runs: everything but the slow tests
test *arguments:
    pytest {{arguments}}

# mathematics and files alone, under a minute
quick:
    pytest -m quick

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
