# People and CI use the same targets. Everything lives in .venv; delete it to start afresh.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test quick check format names docs lab lab-status bench growth conformance gallery beating mutants load fuzz sbom audit hashed hashes oldest newest clean

demo: .venv/demo  ## harden, attack and judge a real backbone on bundled images
	$(BIN)/robvit demo --out runs/demo

test: .venv/weights  ## all tests, in two processes
	$(BIN)/python -m pytest -n 2 --dist worksteal

quick: .venv/ready  ## tests that take seconds and need no foundation model and no browser
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not weights and not browser"

check: .venv/ready  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini tests

format: .venv/ready  ## put the style right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/ready  ## the documentation as pages, into site/; a warning is an error
	$(BIN)/python scripts/build_docs.py site

lab: .venv/weights  ## resume the studies of results/queue.yaml, one at a time; LAB="--jobs 2" for two
	$(BIN)/robvit data cifar10
	$(BIN)/python scripts/lab.py $(LAB)

lab-status: .venv/ready  ## which studies are done, begun and left
	$(BIN)/python scripts/lab.py --status

bench: .venv/ready  ## speed of the attacks beside other libraries and the processor's peak, and of learning tokens
	$(BIN)/python benchmarks/attacks.py
	$(BIN)/python benchmarks/peak.py
	$(BIN)/python benchmarks/tokens.py

growth: .venv/ready  ## seconds and memory of an evaluation against the number of images
	$(BIN)/python benchmarks/growth.py

conformance: .venv/ready  ## strength of the attacks beside other libraries, image by image
	$(BIN)/python benchmarks/attacks_conformance.py
	$(BIN)/python benchmarks/attacks_conformance.py --norm l2 --count 12 --queries 1000
	$(BIN)/python benchmarks/attacks_conformance.py --norm l1 --count 12 --queries 1000

names: .venv/ready  ## the table of names that is read before torch is loaded, from the registries
	$(BIN)/python scripts/make_names.py

gallery: .venv/weights  ## the figures in docs/gallery, from bundled images
	$(BIN)/python scripts/make_gallery.py

beating: .venv/ready  ## kill long commands at random points, fifty times, and compare what they end with
	$(BIN)/python scripts/beating.py --kills 50

mutants: .venv/ready  ## take each defence of security out and see that a test notices
	$(BIN)/python scripts/mutants.py

load: .venv/ready  ## robvit serve among 200 silent connections and bombs, on loopback: nobody else notices
	$(BIN)/python scripts/load.py

fuzz: .venv/ready  ## damaged files, arguments and requests for FUZZ_SECONDS (600); findings go to runs/fuzz
	$(BIN)/python scripts/fuzz.py

sbom: .venv/ready  ## the software bill of materials: sbom.json, CycloneDX
	$(BIN)/python scripts/sbom.py sbom.json

audit: .venv/ready  ## known vulnerabilities of the pinned versions; asks a database on the network
	$(BIN)/python -m pip install --disable-pip-version-check -q pip-audit
	$(BIN)/pip-audit --disable-pip --no-deps -r constraints.txt

hashed: .venv/made  ## fill .venv with the pinned versions, every file compared with hashes.txt before it is opened
	$(BIN)/python -m pip install --disable-pip-version-check --require-hashes --no-deps --only-binary :all: -r hashes.txt
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch .venv/ready .venv/demo

hashes: .venv/ready  ## hashes.txt anew, after constraints.txt was changed; asks the package registry
	$(BIN)/python scripts/hashes.py

oldest:  ## the quick tests of what versions differ in, with the oldest versions that pyproject.toml allows
	$(PYTHON) scripts/versions.py oldest

newest:  ## the same with the newest versions there are
	$(PYTHON) scripts/versions.py newest

clean:  ## remove what make made
	rm -rf .venv runs site

# What the demo needs, and nothing for tests or documentation; it fetches its weights itself and says so.
.venv/demo: .venv/made pyproject.toml constraints.txt
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e .
	@touch $@

.venv/ready: .venv/made pyproject.toml constraints.txt
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	@touch $@ .venv/demo

.venv/made:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "robvit needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; set PYTHON=python3.12, say")'
	$(PYTHON) -m venv .venv
	@touch $@

.venv/weights: .venv/ready
	$(BIN)/robvit weights get dinov2-small
	@touch $@
