# Everything is built and installed under $(CACHE), outside the checkout: a second run is
# quick, and a fresh clone on the same machine starts warm.

CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/laggard
VENV := $(CACHE)/venv
PYTHON ?= python3
export CARGO_TARGET_DIR ?= $(CACHE)/target
BIN := $(VENV)/bin

.PHONY: demo test acceptance bench lint deny fuzz model-check sanitize install venv clean

## Train with a hidden fault, find it, and write laggard-demo.html
demo: install
	$(BIN)/laggard demo

## Everything that must hold: Rust tests, Python tests, real torchrun jobs
test: install
	cargo test --workspace --exclude python --locked --quiet
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$(CACHE)/target-loom \
		cargo test --package ring@0.1 --lib --release --locked --quiet model_check
	$(BIN)/python -m pytest python/tests -q

## Formatting and lints, warnings are errors
lint: venv
	cargo fmt --check
	cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
	cargo run --locked --quiet --package xtask -- check
	$(BIN)/ruff check python
	$(BIN)/ruff format --check python

## The acceptance table: measured values beside the paper's
acceptance: install
	cargo run --release --locked --quiet --package xtask -- acceptance --venv $(VENV)

## What it costs
bench: install
	cargo bench --locked --quiet --package frontier --package pattern --package schedule \
		--package ring@0.1 --package nccl --package preload
	$(BIN)/python python/benches/cost.py

## The ring under AddressSanitizer and ThreadSanitizer (needs a nightly toolchain)
sanitize:
	for sanitizer in address thread; do \
		TSAN_OPTIONS=suppressions=$(CURDIR)/crates/capture/ring/tests/tsan.supp \
		RUSTFLAGS="-Zsanitizer=$$sanitizer -Cunsafe-allow-abi-mismatch=sanitizer" \
		CARGO_TARGET_DIR=$(CACHE)/target-sanitize cargo +nightly test --quiet \
			--package ring@0.1 --test processes --test live --target $$(rustc -vV | sed -n 's/host: //p') \
			|| exit 1; \
	done

## Licences, sources and known weaknesses of what is built in (needs cargo-deny and the network)
deny:
	cargo deny check

## Every parser of foreign bytes, SECONDS each (needs a nightly toolchain and cargo-fuzz)
SECONDS ?= 60
fuzz: export CARGO_TARGET_DIR = $(CACHE)/target-fuzz
fuzz:
	cd fuzz && for target in $$(cargo +nightly fuzz list); do \
		mkdir -p corpus/$$target && \
		cargo +nightly fuzz run $$target corpus/$$target seeds/$$target -- \
			-dict=words.dict -max_total_time=$(SECONDS) -timeout=10 || exit 1; done

# Puts what was built into the wheel's data, if it has changed.
define place
	mkdir -p python/laggard.data/$(2)
	cmp -s $(CARGO_TARGET_DIR)/release/$(1) python/laggard.data/$(2)/$(1) || \
		cp $(CARGO_TARGET_DIR)/release/$(1) python/laggard.data/$(2)/$(1)
endef

## The wheel with the command and the libraries for NCCL in it, installed into $(VENV)
install: venv
	cargo build --release --package cli --package nccl --package preload --locked --quiet
	$(call place,laggard,scripts)
	$(call place,liblaggard_nccl.so,platlib/laggard)
	$(call place,liblaggard_preload.so,platlib/laggard)
	rm -rf $(CACHE)/wheels
	$(BIN)/maturin build --release --locked --quiet --interpreter $(BIN)/python \
		--out $(CACHE)/wheels
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --force-reinstall \
		$(CACHE)/wheels/*.whl

venv: $(CACHE)/venv.stamp

$(CACHE)/venv.stamp: python/requirements.txt
	mkdir -p $(CACHE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r python/requirements.txt
	cp python/requirements.txt $@

clean:
	rm -rf $(CACHE)/target $(CACHE)/target-loom $(CACHE)/target-sanitize \
		$(CACHE)/target-fuzz $(CACHE)/wheels
