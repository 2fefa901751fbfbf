# Everything is built and installed under $(CACHE), outside the checkout: a second run is
# quick, and a fresh clone on the same machine starts warm.

CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/laggard
VENV := $(CACHE)/venv
PYTHON ?= python3
export CARGO_TARGET_DIR ?= $(CACHE)/target
BIN := $(VENV)/bin
TOOLS := $(CACHE)/tools
export PATH := $(TOOLS)/usr/bin:$(TOOLS)/usr/sbin:$(TOOLS)/node_modules/.bin:$(PATH)

.PHONY: demo test acceptance bench load lint lint-rust lint-python deny api fuzz sanitize valgrind install venv tools clean

## Train with a hidden fault, find it, and write laggard-demo.html
demo: install
	$(BIN)/laggard demo

## Everything that must hold: Rust tests, Python tests, real torchrun jobs
test: install
	@for tool in chromium nats-server promtool s3rver; do \
		command -v $$tool >/dev/null || echo "there is no $$tool: its tests are skipped"; done
	RUST_TEST_THREADS=6 cargo test --workspace --exclude python --locked --quiet
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$(CACHE)/target-loom \
		cargo test --package ring@0.1 --lib --release --locked --quiet model_check
	$(BIN)/python -m pytest python/tests -q --durations 15

## Formatting and lints, warnings are errors
lint: lint-rust lint-python

lint-rust:
	cargo fmt --check
	cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
	@# Without libFuzzer itself, which needs a C++ compiler, the fuzz targets are checked all the same.
	CUSTOM_LIBFUZZER_PATH=/dev/null \
		cargo check --manifest-path fuzz/Cargo.toml --all-targets --locked --quiet
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
	cargo run --locked --quiet --package xtask -- check

lint-python: venv
	$(BIN)/ruff check python
	$(BIN)/ruff format --check python

## The acceptance table: measured values beside the paper's
acceptance: install
	cargo run --release --locked --quiet --package xtask -- acceptance --venv $(VENV)

## What it costs
bench: install
	cargo bench --locked --quiet --package frontier --package pattern --package schedule --package verdict \
		--package ring@0.1 --package nccl --package preload
	$(BIN)/python python/benches/cost.py

## What a collector bears: RANKS simulated ranks that tell a real one
RANKS ?= 10000
load: install
	cargo run --release --locked --quiet --package xtask -- load --laggard $(BIN)/laggard --ranks $(RANKS)

## The ring under AddressSanitizer and ThreadSanitizer (needs a nightly toolchain)
sanitize:
	for sanitizer in address thread; do \
		TSAN_OPTIONS=suppressions=$(CURDIR)/crates/capture/ring/tests/tsan.supp \
		RUSTFLAGS="-Zsanitizer=$$sanitizer -Cunsafe-allow-abi-mismatch=sanitizer" \
		CARGO_TARGET_DIR=$(CACHE)/target-sanitize cargo +nightly test --quiet \
			--package ring@0.1 --test processes --test live --target $$(rustc -vV | sed -n 's/host: //p') \
			|| exit 1; \
	done

## The NCCL plugin and the preloaded library under valgrind, as they are built for tests. Left out
## is the simulated cluster, whose clock and copies of the plugin take hours there.
# Threads that only read would else keep the others from writing.
valgrind: export RUNNER = valgrind --quiet --fair-sched=yes --error-exitcode=9 \
	--trace-children=yes --trace-children-skip=*/cc,*/ld,*/as,*/cc1
valgrind:
	cargo test --quiet --locked --package nccl --test plugin --package preload --test preload \
		--config "target.$$(rustc -vV | sed -n 's/host: //p').runner = '$(RUNNER)'" \
		-- --skip cluster --test-threads 1

## Licences, sources and known weaknesses of what is built in (needs cargo-deny and the network)
deny:
	cargo deny check

## The served description of the API against a fuzzer, REQUESTS of each kind (needs the network once)
REQUESTS ?= 200
api: $(CACHE)/api.stamp
	PATH=$(CACHE)/api/bin:$$PATH LAGGARD_TEST_REQUESTS=$(REQUESTS) cargo test --locked --quiet \
		--package cli --test service a_fuzzer_of_the_api -- --nocapture

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

## Programs that some tests talk to: Debian's packages and npm's, unpacked under $(CACHE); chromium needs root
tools:
	mkdir -p $(TOOLS)
	{ command -v nats-server && command -v promtool; } >/dev/null || (cd $(TOOLS) && \
		apt-get download --quiet nats-server prometheus && \
		for package in *.deb; do dpkg --extract $$package . && rm $$package; done)
	command -v s3rver >/dev/null || npm install --silent --prefix $(TOOLS) s3rver
	command -v chromium >/dev/null || \
		apt-get install --yes --quiet --quiet --no-install-recommends chromium

venv: $(CACHE)/venv.stamp

$(CACHE)/venv.stamp: python/requirements.txt
	mkdir -p $(CACHE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r python/requirements.txt
	cp python/requirements.txt $@

clean:
	rm -rf $(CACHE)/target $(CACHE)/target-loom $(CACHE)/target-sanitize \
		$(CACHE)/target-fuzz $(CACHE)/checkout $(CACHE)/wheels $(TOOLS)
