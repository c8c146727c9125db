# People and CI use the same targets. Everything lives in .venv; delete it to start afresh.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test quick check format docs bench conformance gallery clean

demo: .venv/weights  ## harden, attack and judge a real backbone on bundled pictures
	$(BIN)/robvit demo --out runs/demo

test: .venv/weights  ## all tests
	$(BIN)/python -m pytest

quick: .venv/ready  ## tests that take seconds and need no foundation model and no browser
	$(BIN)/python -m pytest -m "not slow and not weights and not browser"

check: .venv/ready  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/ready  ## put the style right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/ready  ## the documentation as pages, into site/; a warning is an error
	$(BIN)/python scripts/build_docs.py site

bench: .venv/ready  ## speed of the attacks beside other libraries, and of learning tokens beside the published recipe
	$(BIN)/python benchmarks/attacks.py
	$(BIN)/python benchmarks/tokens.py

conformance: .venv/ready  ## strength of the attacks beside other libraries, picture by picture
	$(BIN)/python benchmarks/attacks_conformance.py
	$(BIN)/python benchmarks/attacks_conformance.py --norm l2 --count 12 --queries 1000
	$(BIN)/python benchmarks/attacks_conformance.py --norm l1 --count 12 --queries 1000

gallery: .venv/weights  ## the figures in docs/gallery, from bundled pictures
	$(BIN)/python scripts/make_gallery.py

clean:  ## remove what make made
	rm -rf .venv runs site

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "robvit needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; set PYTHON=python3.12, say")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	@touch $@

.venv/weights: .venv/ready
	$(BIN)/robvit weights get dinov2-small
	@touch $@
