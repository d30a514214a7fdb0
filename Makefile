# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Of the ten thousand modules of the dependencies few are imported: these are compiled then, and kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo docs release test test-all lint types architecture tests tests-all test-spark test-trl test-flower bench bench-gpu bench-gpu-models bench-common bench-tuning bench-overhead bench-jobs bench-ranks bench-correlated bench-batches bench-compare bench-accounting fuzz-accounting bench-queries bench-ledger coupling-table check-noise check-queries check-power check-slots torture-ledger results playground playground-test pages-test playground-pictures playground-expected clean

install: $(VENV)/.installed

SOURCES := pyproject.toml constraints.txt setup.py $(wildcard src/tacit/native/*.cpp src/tacit/native/*.h)

define environment
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tacit needs Python 3.11 or newer; set PYTHON=...")'
$(PYTHON) -m venv $(VENV)
endef

# The demo needs a part of the packages: an environment that has no more is made sooner and takes less space.
$(VENV)/.demo: $(SOURCES)
	$(environment)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[cli,plots,sklearn]'
	touch $@

# In one call of pip: a second one on top of the demo's builds the kernels and looks for versions once more.
$(VENV)/.installed: $(SOURCES)
	$(environment)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $(VENV)/.demo $@

demo: $(VENV)/.demo  ## train a private model on bundled real data and show the result
	$(BIN)/tacit demo

test: install lint types architecture tests  ## everything that CI checks; eleven minutes on two cores

test-all: install lint types architecture tests-all  ## all cases of all tests, with coverage; before a release

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types:
	$(BIN)/mypy --num-workers 2

architecture:
	$(BIN)/lint-imports

tests:
	OMP_NUM_THREADS=1 $(BIN)/pytest --quick -n 2 --dist worksteal

tests-all:
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal --cov --cov-report=json:.coverage.json
	$(BIN)/python tests/coverage_bar.py .coverage.json

test-spark: install  ## queries and batches on a local Spark; needs Java 17, and downloads half a gigabyte
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[spark]'
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/queries/test_sql_dialects.py tests/runs/test_runs_batches.py -k spark

test-trl: install  ## what TRL prepares, its collators and its settings
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[trl]'
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/integrations/test_transformers_trl.py

test-flower:  ## a federation in one process, by Flower, which excludes packages of .venv: in one of its own
	$(PYTHON) -m venv .venv-flower
	.venv-flower/bin/pip install --quiet --editable '.[flower,ledger]' pytest hypothesis
	OMP_NUM_THREADS=1 .venv-flower/bin/pytest tests/integrations/test_flower.py

bench: install  ## time and memory of a private step beside peers, half an hour; let nothing else run
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python benchmarks/bench_step.py
	$(BIN)/python benchmarks/bench_step.py --suite library
	$(BIN)/python benchmarks/bench_lengths.py
	$(BIN)/python docs/build.py

bench-gpu: install  ## the same on a CUDA device, with the PyTorch build that is in .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python benchmarks/bench_step.py --suite gpu
	$(BIN)/python docs/build.py

bench-gpu-models: install  ## a private step of BERT, ViT, GPT-2, Llama and others on a CUDA device; eight minutes. GO_ON=1 measures what is left
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[bench-gpu]'
	$(BIN)/python benchmarks/bench_gpu_models.py $(if $(GO_ON),--go-on)
	$(BIN)/python docs/build.py

bench-common: install  ## steps of recurrent layers, ConvNeXt, LoRA and Opacus's examples beside plain ones
	$(BIN)/python benchmarks/bench_step.py --suite common

bench-tuning: install  ## a step of a small Llama with LoRA on prompts with completions, beside Opacus and Opake
	$(BIN)/python benchmarks/bench_tuning.py
	$(BIN)/python docs/build.py

bench-overhead: install  ## steps of many small operations, and of weight norm, beside plain ones
	$(BIN)/python benchmarks/bench_step.py --suite overhead

bench-jobs: install  ## whole jobs of 100 steps beside plain ones, first step included; LONG=1 for 1,000 steps
	$(BIN)/python benchmarks/bench_jobs.py $(if $(LONG),--long)
	$(BIN)/python docs/build.py

bench-ranks: install  ## a private step beside a plain one, of two processes and of one
	$(BIN)/python benchmarks/bench_ranks.py --out benchmarks/results/ranks.json

bench-correlated: install  ## a private step with correlated noise over one with independent noise
	$(BIN)/python benchmarks/bench_correlated.py --out benchmarks/results/correlated.json

bench-batches: install  ## batches of a million records written by a local Spark; needs Java 17
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[spark]'
	$(BIN)/python benchmarks/bench_batches.py

bench-compare: install  ## private steps before and now, in turns; BEFORE=src folder of another checkout, QUICK=1
	$(BIN)/python benchmarks/bench_compare.py $(BEFORE) $(if $(QUICK),--quick)

bench-accounting: install  ## time our accountant beside others; TACIT_OPAKE=python3.13 adds Opake's
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[bench]'
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/bench_accounting.py
	$(BIN)/python docs/build.py

fuzz-accounting: install  ## two thousand random events against other accountants; an hour or two
	OMP_NUM_THREADS=1 PYTHONPATH=. $(BIN)/python tests/accounting/fuzz_events.py 2000
	$(BIN)/python docs/build.py

bench-ledger: install  ## what a charge takes, on SQLite and PostgreSQL
	$(BIN)/python benchmarks/bench_ledger.py

check-noise: install  ## the law of the noise on 1e8 draws, and its speed beside torch's normal
	$(BIN)/python benchmarks/check_noise.py
	$(BIN)/python docs/build.py

check-slots: install  ## what audit slots prove and find on real runs; some minutes, for the night
	$(BIN)/python benchmarks/check_slots.py

check-power: install  ## how often an audit finds a planted fault, before its second stage and since; half an hour
	$(BIN)/python benchmarks/check_power.py

check-queries: install  ## intervals, low bits and accuracy of private queries on thousands of answers
	$(BIN)/python benchmarks/check_queries.py $(if $(DIFFPRIVLIB),--diffprivlib $(DIFFPRIVLIB))
	$(BIN)/python docs/build.py

coupling-table: install  ## how far one record moves the clipped sum, for every known coupling; some minutes
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/coupling_table.py
	$(BIN)/python docs/build_couplings.py

bench-queries: install  ## a private group-by over ten million rows beside plain DuckDB
	$(BIN)/python benchmarks/bench_queries.py

torture-ledger: install  ## crowds, sudden death, power loss and full disks for the ledger, at full size; a quarter of an hour
	$(BIN)/python benchmarks/torture_ledger.py
	$(BIN)/python docs/build.py

release: install  ## check, build and try a release, in dist; nothing is uploaded. TRY="python3.12 python3.13" tries more Pythons
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[release]'
	$(BIN)/python release/make.py --python $(BIN)/python $(TRY:%=--python %)

docs: install  ## the documentation site, in build/site; warnings are errors
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --doctree-dir build/doctrees docs build/site
	@echo "Open build/site/index.html"

results:  ## draw docs/results.md and docs/reference/couplings.md from the committed JSON
	$(BIN)/python docs/build.py
	$(BIN)/python docs/build_couplings.py

# The page is committed, so that only those who change it need Node.
playground/node_modules/.installed: playground/package.json playground/package-lock.json
	cd playground && npm ci --no-fund --no-audit
	touch $@

playground: playground/node_modules/.installed  ## check the playground's types and build src/tacit/cli/playground.html; needs Node 20
	cd playground && npm run --silent check && npm run --silent build

playground-test: playground  ## the playground's accounting and training, and the page in Chromium (CHROMIUM=/usr/bin/chromium)
	cd playground && npm run --silent test && npm run --silent test:browser

pages-test: playground/node_modules/.installed install  ## axe on each page that Tacit writes, and on the site if make docs built it
	OMP_NUM_THREADS=1 $(BIN)/python playground/write_pages.py
	cd playground && npm run --silent test:browser reports

playground-pictures: playground install  ## take the pictures of docs/explanation/playground.md anew
	cd playground && node screenshots.mjs
	$(BIN)/python playground/shrink_pictures.py

playground-expected: install  ## write what the playground's tests expect, by Tacit's accountant and reference engine
	$(BIN)/python playground/oracle/write_accounting.py
	$(BIN)/python playground/oracle/write_steps.py

clean:
	rm -rf $(VENV) build dist runs
