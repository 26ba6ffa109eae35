package systems_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// inNamespace runs a program in namespaces of its own in which arm64's programs run by qemu,
// those that they start, too, as kith starts its engine: Linux 6.7 or newer.
const inNamespace = `
mount -t binfmt_misc binfmt_misc "$1" || {
  echo "cannot register qemu for arm64's programs here: this needs user namespaces, and Linux 6.7 or newer" >&2
  exit 1
}
m='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
printf '%s' ":arm64:M::$m:$mask:$(command -v qemu-aarch64):" >"$1/register"
shift
exec "$@"`

// TestArm64: Linux's binary for arm64 answers with its built-in engine.
func TestArm64(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "binfmt"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := &system{t: t, program: []string{"unshare", "-rm", "sh", "-euc", inNamespace, "sh", filepath.Join(dir, "binfmt"), built(t, "kith-arm64")}}
	s.env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "NO_COLOR=1", "KITH_SYSTEM_ROOT=" + filepath.Join(dir, "system"), "QEMU_LD_PREFIX=/usr/aarch64-linux-gnu"}
	if out, status := s.kith("version"); status != 0 || !strings.Contains(out, "linux/arm64") {
		t.Fatalf("%d: %s", status, out)
	}
	n, end := s.dev(filepath.Join(dir, "dev"))
	callAll(t, n, "tiny", "")
	end()
}
