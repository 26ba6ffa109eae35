package host

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
)

func TestRAM(t *testing.T) {
	const mib = 1 << 20
	info := "MemTotal:       8192000 kB\nMemFree:           1 kB\nMemAvailable:   6144000 kB"
	for name, c := range map[string]struct {
		group, max, used, cache string
		want                    Memory
	}{
		"no group":             {"", "", "", "", Memory{8000 * mib, 6000 * mib}},
		"the first version":    {"4:memory:/a\n0::/a/b", "1048576000", "5", "0", Memory{8000 * mib, 6000 * mib}},
		"no bound":             {"0::/a/b", "max", "1048576", "0", Memory{8000 * mib, 6000 * mib}},
		"a bound":              {"0::/a/b", "1048576000", "524288000", "0", Memory{1000 * mib, 500 * mib}},
		"full of cached files": {"0::/a/b", "1048576000", "1048576000", "104857600", Memory{1000 * mib, 100 * mib}},
		"over its bound":       {"0::/a/b", "1048576", "9048576000", "0", Memory{mib, 0}},
		"nonsense":             {"0::/a/b", "nonsense", "9", "x", Memory{8000 * mib, 6000 * mib}},
		"a wide bound":         {"0::/a/b", "99999999999999", "1000", "0", Memory{8000 * mib, 6000 * mib}},
	} {
		got := stage(t, map[string]string{
			"proc/meminfo": info, "proc/self/cgroup": c.group, "sys/fs/cgroup/a/b/memory.max": c.max,
			"sys/fs/cgroup/a/b/memory.current": c.used, "sys/fs/cgroup/a/b/memory.stat": "anon 5\ninactive_file " + c.cache,
		}).RAM(t.Context())
		assert.Equal(t, got, c.want, name)
	}
	around := stage(t, map[string]string{
		"proc/meminfo": info, "proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/memory.max": "max", "sys/fs/cgroup/a/b/memory.current": "1048576",
		"sys/fs/cgroup/a/memory.max": "1048576000", "sys/fs/cgroup/a/memory.current": "524288000",
	})
	assert.Equal(t, around.RAM(t.Context()), (Memory{1000 * mib, 500 * mib}), "within a group within a bound")
	assert.Equal(t, stage(t, nil).RAM(t.Context()), (Memory{}), "a system without such files has")
	if got := (Computer{}).RAM(t.Context()); got.Free == 0 || got.Free > got.Total {
		t.Errorf("this computer has %+v", got)
	}
}

func TestGPUs(t *testing.T) {
	const query = "--query-gpu=memory.total,memory.used,name --format=csv,noheader,nounits"
	card := func(n int, total, used string) map[string]string {
		at := fmt.Sprintf("sys/class/drm/card%d/device/mem_info_vram_", n)
		return map[string]string{at + "total": total, at + "used": used}
	}
	nvidia := map[string]string{"proc/driver/nvidia/version": "NVRM"}
	for name, c := range map[string]struct {
		says  string
		files map[string]string
		want  []GPU
	}{
		"none":                  {"24564, 511, NVIDIA L4\n", nil, nil},
		"NVIDIA's":              {"24564, 564, NVIDIA GeForce RTX 4090\n", nvidia, []GPU{{"NVIDIA GeForce RTX 4090", Memory{24564 << 20, 24000 << 20}}}},
		"two":                   {"24564, 564, One, rev 2\n8192, 8192\n", nvidia, []GPU{{"One, rev 2", Memory{24564 << 20, 24000 << 20}}, {"", Memory{8192 << 20, 0}}}},
		"with the main memory":  {"[N/A], [N/A], NVIDIA GB10\n", nvidia, nil},
		"no driver to talk to":  {"No devices were found\n", nvidia, nil},
		"more used than it has": {"10, 11\n", nvidia, nil},
		"AMD's":                 {"", card(1, "17163091968", "163091968"), []GPU{{"AMD GPU", Memory{17163091968, 17000000000}}}},
		"AMD's, without a word": {"", card(1, "17163091968", "x"), nil},
	} {
		nvidiaSays(t, query, c.says)
		if got := stage(t, c.files).GPUs(t.Context()); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	wsl := map[string]string{"dev/dxg": ""}
	nvidiaSays(t, query, "24564, 564\n")
	if got := stage(t, wsl).GPUs(t.Context()); len(got) != 1 {
		t.Errorf("within WSL2, which has no /proc/driver/nvidia: %v", got)
	}
	t.Setenv("PATH", os.DevNull)
	if got := stage(t, nvidia).GPUs(t.Context()); got != nil {
		t.Errorf("without nvidia-smi: %v", got)
	}
	c := stage(t, wsl)
	script := c.path(wslPrograms, "nvidia-smi")
	assert.OK(t, os.MkdirAll(filepath.Dir(script), 0o700))
	assert.OK(t, os.WriteFile(script, []byte("#!/bin/sh\necho 8192, 0\n"), 0o700))
	if got := c.GPUs(t.Context()); len(got) != 1 || got[0].Total != 8192<<20 {
		t.Errorf("within WSL2, where nvidia-smi is not on PATH: %v", got)
	}
}

// TestHangingProgram: a program that does not end, and whose child holds its output open,
// delays neither a reading nor an interrupt.
func TestHangingProgram(t *testing.T) {
	before, after := commandTimeout, exitTimeout
	defer func() { commandTimeout, exitTimeout = before, after }()
	dir := t.TempDir()
	child := filepath.Join(dir, "child")
	script := "#!/bin/sh\nsleep 1000 &\necho $! >" + child + ".new && mv " + child + ".new " + child + "\nwait\n"
	assert.OK(t, os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte(script), 0o700))
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	c := stage(t, map[string]string{"proc/driver/nvidia/version": "NVRM"})
	for name, try := range map[string]func(){
		"its time is over": func() {
			commandTimeout, exitTimeout = 100*time.Millisecond, 100*time.Millisecond
			if got := c.GPUs(t.Context()); got != nil {
				t.Errorf("%v", got)
			}
		},
		"an interrupt": func() {
			commandTimeout, exitTimeout = time.Hour, 100*time.Millisecond
			ctx, interrupt := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer interrupt()
			assert.Equal(t, c.GPUUser(ctx, nil), "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan struct{})
			go func() { defer close(ended); try() }()
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Error("it hangs")
			}
			if pid, err := strconv.Atoi(readText(child)); err == nil {
				process, _ := os.FindProcess(pid)
				_ = process.Kill()
			}
			_ = os.Remove(child)
			<-ended
		})
	}
}
