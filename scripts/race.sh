# Read by the scripts that test with the race detector: "${race[@]}" are go test's flags.
# Packages that only compute, in memory of their own, have nothing that it could see, and
# would take two to four times as long: SQLite (C turned into Go) and the
# arithmetic of crypto. SQLite's pointers are C's, so that checkptr finds nothing either.
# A package that synchronizes goroutines must not be here: without its atomic operations
# the detector reports races that are none: argon2 has a WaitGroup.
#
# A program that was built with it waits a second before it ends, for races that are
# being reported in other goroutines. The tests start hundreds of programs.
export GORACE=atexit_sleep_ms=0
race=(-race -gcflags=modernc.org/...=-d=checkptr=0)
for package in modernc.org/sqlite/lib golang.org/x/crypto/blake2b \
  crypto/internal/fips140/{nistec/...,edwards25519/...,bigmod,sha256,sha512,mlkem,sha3}; do
  race+=("-gcflags=$package=-race=false")
done
