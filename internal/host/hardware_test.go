package host

import (
	"testing"

	"github.com/kith/kith/internal/assert"
)

func TestHardware(t *testing.T) {
	nvidiaSays(t, "--query-gpu=memory.total,memory.used,name --format=csv,noheader,nounits", "24564, 511, NVIDIA GeForce RTX 4090\n")
	got := stage(t, map[string]string{
		"proc/driver/nvidia/version": "NVRM",
		"proc/meminfo":               "MemTotal:       65536000 kB\nMemFree: 1 kB\nMemAvailable:   6144000 kB",
		"proc/cpuinfo":               "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD Ryzen 9 7950X   16-Core Processor\n\nprocessor\t: 1\nmodel name\t: other",
		"etc/os-release":             "NAME=\"Debian GNU/Linux\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"",
	}).Hardware(t.Context())
	assert.Equal(t, got.System, "Debian GNU/Linux 12 (bookworm)")
	assert.Equal(t, got.CPU, "AMD Ryzen 9 7950X 16-Core Processor")
	assert.Equal(t, got.Memory, 64000<<20)
	assert.Same(t, got.GPUs, []GPU{{"NVIDIA GeForce RTX 4090", Memory{24564 << 20, 24053 << 20}}})

	none := stage(t, nil).Hardware(t.Context())
	assert.That(t, none.System == "" && none.CPU == "" && none.Memory == 0 && none.GPUs == nil, "a system without such files", none)
	here := Computer{}.Hardware(t.Context())
	assert.That(t, here.System != "" && here.Cores > 0 && here.Memory > 0, "this computer", here)
}

func TestSystemNames(t *testing.T) {
	for line, want := range map[string]string{
		`PRETTY_NAME="Ubuntu 24.04.1 LTS"`: "Ubuntu 24.04.1 LTS", `PRETTY_NAME='Arch Linux'`: "Arch Linux", `PRETTY_NAME=Void`: "Void", `NAME=x`: "",
	} {
		assert.Equal(t, stage(t, map[string]string{"etc/os-release": line}).system(t.Context()), want, line)
	}
}
