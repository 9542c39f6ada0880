# A reader needs "make book" and "make lab"; "make" alone lists the rest.
# Each target sets up what it needs, and does nothing when nothing changed.
PYTHON ?= python3
TORCH_INDEX ?=# an index of torch wheels, e.g. the CPU one from PyTorch's install page
REPOSITORY ?=# https://github.com/OWNER/NAME, for links; else Actions or origin says it
PORT ?= 8000
BIN := .venv/bin
READY := .venv/.ready
SITE := _build/html
BUILD := $(BIN)/jupyter-book build . -W -n --keep-going -q
SOURCES := _config.yml _toc.yml $(shell find book notebooks scripts errata exercises clinic allranks -type f \
	-not -path '*/.*' -not -path '*/__pycache__/*' 2>/dev/null)

export ALLRANKS_REPOSITORY := $(REPOSITORY)
unexport PYTHONDONTWRITEBYTECODE # or each of a thousand processes compiles our sources
.DEFAULT_GOAL := help
.PHONY: help book epub pdf scripts doctor.pyz serve lab test everything newest check notebooks chapter bench gpu outside \
	lighthouse browser wheel release tag clean force

help: ## list the targets
	@sed -n 's/^\([a-z.]*\):.*## \(.*\)/make \1@\2/p' $(MAKEFILE_LIST) | column -t -s @

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.exit(0 if sys.version_info >= (3, 11) else f"Python {v} is too old: this book needs 3.11 or newer (make PYTHON=python3.12 ...)")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(if $(TORCH_INDEX),$(BIN)/pip install -q --disable-pip-version-check --index-url $(TORCH_INDEX) "$$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' requirements.txt)")
	@echo "Installing requirements.txt into .venv (a minute or two) ..."
	@$(BIN)/pip install -q --disable-pip-version-check -r requirements.txt
	@touch $@

book: $(SITE)/.built ## build the book
	@echo "The book: $(SITE)/index.html    (make serve shows it on http://localhost:$(PORT))"

_build/.repository: force # newer than the book if another one is named
	@mkdir -p _build && { echo '$(REPOSITORY)' | cmp -s - $@ || echo '$(REPOSITORY)' >$@; }

# A build that failed is thrown away: Sphinx would not repeat its warnings.
$(SITE)/.built: $(READY) _build/.repository $(SOURCES)
	@$(BIN)/python book/_tools/counts.py
	@$(BUILD) || { rm -rf _build; exit 1; }
	@touch $@

serve: book ## show the book in a browser
	@$(BIN)/python -m http.server $(PORT) --bind 127.0.0.1 --directory $(SITE)

epub pdf: $(READY)
	@$(BIN)/python book/_tools/paper.py $@
epub: ## make _build/all-ranks.epub
pdf: ## make _build/all-ranks.pdf (needs Chromium: make browser)

scripts: $(READY) ## write each script as one file, as the pages offer it
	@$(BIN)/python book/_tools/scripts.py

doctor.pyz: ## write _build/doctor.pyz, chapter 1's doctor in one file
	@$(PYTHON) -I allranks/doctor/pack.py _build/doctor.pyz

lab: $(READY) ## open the first notebook in JupyterLab
	@$(BIN)/python book/_tools/lab.py
	@$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) \
		--ServerApp.ip=127.0.0.1 lab/ch1_environment.ipynb

TESTS := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder \
	--junitxml=_build/tests.xml

test: book check ## test all, but of unchanged outputs replay a tenth (minutes)
	@$(BIN)/python book/_tools/browser.py || test "$$CI" != true
	@$(TESTS) $(REPLAYS); ended=$$?; \
		ALLRANKS_TESTS=_build/tests.xml $(BUILD) >/dev/null && touch $(SITE)/.built; exit $$ended

everything: REPLAYS := --replays=all
everything: test ## test all and replay every output (about 30 minutes)

newest: $(READY) ## put the newest torch into .venv, with which all must pass as well
	@$(BIN)/pip install -q --upgrade $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch

check: $(READY) ## check the style only (seconds)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

notebooks: $(READY) ## re-execute the notebooks and the pages' commands
	@$(BIN)/python book/_tools/execute.py

chapter: $(READY) ## begin a chapter or a draft: NAME=ch7_x (or draft_x) TITLE="..."
	@$(BIN)/python book/_tools/chapter.py "$(NAME)" "$(TITLE)"

lighthouse: book ## measure three pages with Lighthouse (needs npx)
	@$(BIN)/python book/_tools/lighthouse.py

bench: book ## measure this machine (about 15 minutes)
	@$(BIN)/python tests/bench

gpu: $(READY) ## play on this machine's GPUs what the book can only quote
	@$(BIN)/python tests/gpu

slurm: $(READY) ## a shell on the login node of a Slurm cluster, all of it in this computer
	@$(BIN)/python -m allranks.cluster 4 --slurm

outside: $(READY) ## run strangers' tests with our classes, on CLONES=DIR
	@$(BIN)/python tests/outside "$(CLONES)"

wheel: $(READY) ## write the package's wheel and source archive into _build/release
	@rm -f _build/release/allranks-* && $(BIN)/python -m hatchling build -d _build/release

release: book epub pdf wheel ## write all that a release carries into _build/release
	@$(BIN)/python book/_tools/release.py

tag: ## refuse TAG=v1.2.3 unless version and change log say the same
	@$(PYTHON) book/_tools/release.py --tag "$(TAG)"

browser: $(READY) ## install Chromium for the browser tests, unless there is a browser
	@$(BIN)/python book/_tools/browser.py

clean: ## delete the built book and the environment
	@rm -rf _build .venv .pytest_cache .ruff_cache .hypothesis
