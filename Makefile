# kith: `make run` brings up the whole network on this machine, `make test` runs every test.
SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

LDFLAGS := -s -w
GO      := go
# Any Go from 1.21 on fetches the toolchain that go.mod names.
export GOTOOLCHAIN := auto
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GREMLINS    := github.com/go-gremlins/gremlins/cmd/gremlins@v0.6.0
SQLC        := github.com/sqlc-dev/sqlc/cmd/sqlc@v1.31.1

.PHONY: help run build build-slim llama test test-all check pictures flaky soak cluster mutate bench bench-idle bench-builtin bench-sealed bench-routing h2spec generate man release fmt setup-test clean

help: ## this list
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: build ## build, then run hub, daemon and the small model in one process (ARGS='--listen 127.0.0.1:9000')
	@bin/kith dev $(ARGS)

build: go-is-here llama ## bin/kith, with the built-in engine
	@scripts/progress.sh "building bin/kith (the first build takes a few minutes)" \
	  env CGO_ENABLED=0 $(GO) build -v -trimpath -tags llama -ldflags '$(LDFLAGS)' -o bin/kith ./cmd/kith

build-slim: go-is-here ## bin/kith-slim, without the built-in engine
	@scripts/progress.sh "building bin/kith-slim" \
	  env CGO_ENABLED=0 $(GO) build -v -trimpath -ldflags '$(LDFLAGS)' -o bin/kith-slim ./cmd/kith

.PHONY: go-is-here
go-is-here:
	@command -v $(firstword $(GO)) >/dev/null || { echo "make: cannot build kith: there is no Go on the PATH; install Go 1.21 or newer from https://go.dev/dl/ (it fetches the version that go.mod names)" >&2; exit 1; }

llama: ## fetch the built-in engine's libraries (npm or curl), once
	@scripts/fetch-llama.sh

setup-test: llama ## install what the tests need: g++, llama-server, Jinja2, PostgreSQL, nginx, Caddy, HAProxy, promtool, Chromium
	@scripts/setup-test.sh
	@scripts/chat-templates.sh
	@scripts/llama-server.sh

test: setup-test ## what CI runs, with the race detector
	@scripts/test.sh

test-all: test ## what takes longer too: releases, every client library, coding agents, a browser, other systems
	@scripts/test-long.sh
	@scripts/test-agents.sh
	@scripts/test-systems.sh

check: ## the quick form, before a commit
	@scripts/check.sh

flaky: setup-test build ## every test 50 times on a busy computer (RUNS=5, PACKAGES=./internal/site)
	@RUNS='$(RUNS)' PACKAGES='$(PACKAGES)' scripts/flaky.sh

soak: setup-test ## the long runs: ten million worlds, ten thousand seeds, a thousand kills
	@scripts/soak.sh

cluster: setup-test build build-slim ## three hub nodes as processes: the stories of one hub, and faults (see docs/performance.md)
	@scripts/cluster.sh

mutate: ## change one operator of the routing rules or the credentials at a time: a test must fail
	@for package in fleet credential; do \
	  KITH_TEST_WORLDS=1000 GOFLAGS=-vet=off $(GO) run $(GREMLINS) unleash --output-statuses lt ./internal/$$package; \
	done

bench: build ## CPU a request and a chunk, beside a plain proxy and nginx
	@$(GO) run ./bench

bench-sealed: build ## sealed calls beside calls in clear: CPU of the hub and of both daemons
	@$(GO) run ./bench -sealed

bench-builtin: build ## the built-in engine: conversations over two daemons, tokens a second beside node-llama-cpp and llama-server
	@$(GO) run ./bench -builtin

bench-idle: build ## 10,000 idle tunnels: memory of each, and how soon all are back
	@$(GO) run ./bench -idle 10000

bench-routing: ## the order of machines beside other policies, simulated
	@$(GO) run ./bench/routing -page docs/performance.md -picture docs/pictures/routing.svg

h2spec: ## HTTP/2 conformance of the tunnel's server end, compared with net/http
	@scripts/h2spec.sh

generate: ## SQL to Go, code to docs, npm's libraries to the site's pages
	@scripts/npm-ci.sh internal/site/npm "the libraries of the site's pages"
	@grep -v '^//# sourceMappingURL' internal/site/npm/node_modules/marked/lib/marked.umd.js >internal/site/static/marked.js
	@grep -v '^//# sourceMappingURL' internal/site/npm/node_modules/dompurify/dist/purify.min.js >internal/site/static/purify.js
	@cp internal/site/npm/node_modules/@highlightjs/cdn-assets/es/highlight.min.js internal/site/static/highlight.js
	@{ cat internal/site/npm/node_modules/temml/dist/temml.min.js; printf '\nexport default temml;\n'; } >internal/site/static/temml.js
	@cp internal/site/npm/node_modules/pdfjs-dist/legacy/build/pdf.min.mjs internal/site/static/pdf.js
	@cp internal/site/npm/node_modules/pdfjs-dist/legacy/build/pdf.worker.min.mjs internal/site/static/pdf.worker.js
	@cd internal/store && $(GO) run $(SQLC) generate
	@$(GO) generate ./...

pictures: setup-test build ## the pictures of the README, the documentation and the front page, to docs/pictures
	@cd e2e/browser && KITH_BIN="$$PWD/../../bin/kith" go test -count=1 -timeout 10m -run TestPictures -v . -pictures "$$PWD/../../docs/pictures"

man: ## the man pages, to build/man
	@$(GO) run ./scripts/man build/man

release: ## every artifact of a release, to dist: archives, packages, the hub's image; checked
	@echo "building a release into dist (the first one takes half an hour: eight builds)"
	@cd scripts/release && $(GO) run . -source ../.. -out ../../dist

fmt: ## gofmt everything
	@git ls-files -co --exclude-standard '*.go' | xargs "$$($(GO) env GOROOT)/bin/gofmt" -w

clean: ## remove what was built and fetched
	@rm -rf bin build dist
