# Read by the scripts that test with the race detector: "${race[@]}" are go test's flags.
# Packages that only compute, in memory of their own, have nothing that it could see, and
# would take two to four times as long: SQLite (C turned into Go), argon2, and the
# arithmetic of crypto. SQLite's pointers are C's, so that checkptr finds nothing either.
# A package that synchronizes goroutines must not be here: without its atomic operations
# the detector reports races that are none.
race=(-race -gcflags=modernc.org/...=-d=checkptr=0)
for package in modernc.org/sqlite/lib golang.org/x/crypto/argon2 golang.org/x/crypto/blake2b \
  crypto/internal/fips140/{nistec/...,edwards25519/...,bigmod,sha256,sha512}; do
  race+=("-gcflags=$package=-race=false")
done
