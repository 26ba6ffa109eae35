package host

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
)

// TestMain gives the scripts of tests, which end by themselves, the time that they take on
// a busy computer.
func TestMain(m *testing.M) {
	commandTimeout, exitTimeout = 2*time.Minute, 2*time.Minute
	os.Exit(m.Run())
}

// stage returns a computer whose files are below a root. A text with the prefix
// "-> " is a link.
func stage(t *testing.T, files map[string]string) Computer {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		assert.OK(t, os.MkdirAll(filepath.Dir(path), 0o700))
		var err error
		if target, link := strings.CutPrefix(text, "-> "); link {
			err = os.Symlink(target, path)
		} else {
			err = os.WriteFile(path, []byte(text+"\n"), 0o600)
		}
		assert.OK(t, err)
	}
	return Computer{Root: root}
}

func TestPersonal(t *testing.T) {
	for chassis, want := range map[string]bool{
		"3": true, "9": true, "10": true, "31": true, "35": true, // desktop, laptop, notebook, convertible, mini
		"17": false, "23": false, "28": false, // server, rack, blade
		"1": false, "": false, "x": false, // other: virtual machines
	} {
		if got := stage(t, map[string]string{"sys/class/dmi/id/chassis_type": chassis}).Personal(); got != want {
			t.Errorf("chassis %q: personal %v, want %v", chassis, got, want)
		}
	}
	assert.That(t, !stage(t, nil).Personal(), "a computer that says nothing is a person's")
}

func TestOnBattery(t *testing.T) {
	const supply = "sys/class/power_supply/"
	battery := func(status string) map[string]string {
		return map[string]string{supply + "BAT0/type": "Battery", supply + "BAT0/status": status}
	}
	with := func(files map[string]string, more ...string) map[string]string {
		for i := 0; i < len(more); i += 2 {
			files[supply+more[i]] = more[i+1]
		}
		return files
	}
	for name, c := range map[string]struct {
		files map[string]string
		want  bool
	}{
		"no supply at all":       {nil, false},
		"discharging":            {battery("Discharging"), true},
		"charging":               {battery("Charging"), false},
		"full":                   {battery("Full"), false},
		"unplugged":              {with(battery("Discharging"), "AC/type", "Mains", "AC/online", "0"), true},
		"a weak charger":         {with(battery("Discharging"), "AC/type", "Mains", "AC/online", "1"), false},
		"USB-C":                  {with(battery("Discharging"), "ucsi/type", "USB", "ucsi/online", "1"), false},
		"a mouse":                {map[string]string{supply + "hid/type": "Battery", supply + "hid/scope": "Device", supply + "hid/status": "Discharging"}, false},
		"a supply in the cellar": {map[string]string{supply + "ups/type": "UPS", supply + "ups/status": "Discharging"}, true},
		"two, one in use":        {with(battery("Full"), "BAT1/type", "Battery", "BAT1/status", "Discharging"), true},
	} {
		assert.Equal(t, stage(t, c.files).OnBattery(t.Context()), c.want, name, "on battery")
	}
}

func TestHotCPU(t *testing.T) {
	chip := func(name string, now int, crit string) map[string]string {
		const at = "sys/class/hwmon/hwmon2/"
		files := map[string]string{at + "name": name, at + "temp1_input": "40000", at + "temp2_input": strconv.Itoa(now * 1000)}
		if crit != "" {
			files[at+"temp2_crit"] = crit
		}
		return files
	}
	zone := func(kind string, now int) map[string]string {
		const at = "sys/class/thermal/thermal_zone0/"
		return map[string]string{at + "type": kind, at + "temp": strconv.Itoa(now * 1000), at + "trip_point_0_temp": "0", at + "trip_point_1_temp": "85000"}
	}
	for name, c := range map[string]struct {
		files     map[string]string
		hot, stay bool // fresh, and after a reading that said hot
	}{
		"no sensor":            {nil, false, false},
		"cool":                 {chip("coretemp", 60, "100000"), false, false},
		"warm":                 {chip("coretemp", 80, "100000"), false, true},
		"hot":                  {chip("coretemp", 90, "100000"), true, true},
		"a lower limit":        {chip("k10temp", 86, "90000"), true, true},
		"a limit that is none": {chip("k10temp", 86, "0"), false, true},
		"no limit":             {chip("k10temp", 91, ""), true, true},
		"a disk":               {chip("nvme", 91, "80000"), false, false},
		"a board's zone":       {zone("cpu-thermal", 81), true, true},
		"a cool zone":          {zone("cpu-thermal", 50), false, false},
		"a battery's zone":     {zone("battery", 95), false, false},
	} {
		machine := stage(t, c.files)
		if hot, stay := machine.HotCPU(t.Context(), false), machine.HotCPU(t.Context(), true); hot != c.hot || stay != c.stay {
			t.Errorf("%s: hot %v, still hot %v, want %v, %v", name, hot, stay, c.hot, c.stay)
		}
	}
}

// gpuTree is a computer with an AMD card in use, and processes of this user: a
// program, an engine with its worker, and this test.
func gpuTree(holder string, mib int, more map[string]string) map[string]string {
	me := strconv.Itoa(os.Getuid())
	files := map[string]string{
		"sys/class/drm/card0/device/mem_info_vram_used": strconv.Itoa(8 << 30),
		"proc/net/tcp": "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n" +
			"   0: 0100007F:2CAA 00000000:0000 0A 00000000:00000000 00:00000000 00000000 " + me + " 0 777 1 0 100 0 0 10 0\n" +
			"   1: 0100007F:2CAA 0100007F:9999 01 00000000:00000000 00:00000000 00000000 " + me + " 0 778 1 0 100 0 0 10 0",
		"proc/50/comm": "ollama", "proc/50/status": "Name:\tollama\nPPid:\t1\nUid:\t" + me + "\t0\t0\t0", "proc/50/fd/3": "-> socket:[777]",
		"proc/51/comm": "runner", "proc/51/status": "PPid:\t50\nUid:\t" + me,
		"proc/60/comm": "game", "proc/60/status": "PPid:\t40\nUid:\t" + me,
		"proc/40/comm": "sh", "proc/40/status": "PPid:\t1\nUid:\t" + me,
		fmt.Sprintf("proc/%d/comm", os.Getpid()): "kith",
		"proc/61/comm":                           "worker", "proc/61/status": fmt.Sprintf("PPid:\t%d\nUid:\t%s", os.Getpid(), me),
	}
	client := fmt.Sprintf("pos:\t0\ndrm-driver:\tamdgpu\ndrm-client-id:\t7\ndrm-memory-vram:\t%d KiB", mib<<10)
	for _, fd := range []string{"5", "6"} { // one client, opened twice
		files["proc/"+holder+"/fd/"+fd] = "-> /dev/dri/renderD128"
		files["proc/"+holder+"/fdinfo/"+fd] = client
	}
	for name, text := range more {
		files[name] = text
	}
	return files
}

func TestGPUUserAMD(t *testing.T) {
	engines := []uint16{11434}
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"no program":             {map[string]string{"proc/net/tcp": ""}, ""},
		"a game":                 {gpuTree("60", 1024, nil), "game"},
		"a browser":              {gpuTree("60", 700, nil), ""}, // 1400 if a client counted twice
		"an engine's worker":     {gpuTree("51", 6000, nil), ""},
		"an engine":              {gpuTree("50", 6000, nil), ""},
		"the built-in engine":    {gpuTree("61", 6000, nil), ""},
		"card with little":       {gpuTree("60", 1024, map[string]string{"sys/class/drm/card0/device/mem_info_vram_used": "1000"}), ""},
		"another user's engine":  {gpuTree("60", 1024, map[string]string{"proc/60/status": "PPid:\t1\nUid:\t998"}), "game"},
		"a process that is gone": {gpuTree("99", 1024, nil), "process 99"},
	} {
		assert.Equal(t, stage(t, c.files).GPUUser(t.Context(), engines), c.want, name, "uses the GPU")
	}
	if got := stage(t, gpuTree("51", 6000, nil)).GPUUser(t.Context(), []uint16{1}); got != "runner" {
		t.Errorf("an engine that is none of ours: %q", got)
	}
}

// nvidiaSMI puts a program on PATH that answers as `nvidia-smi pmon` does.
func nvidiaSMI(t *testing.T, rows string) {
	t.Helper()
	nvidiaSays(t, "pmon -c 1 -s m",
		"# gpu         pid   type     fb   ccpm    command\n# Idx           #    C/G     MB     MB    name\n"+rows)
}

// nvidiaSays puts an nvidia-smi on PATH that prints says for those arguments and
// fails for others.
func nvidiaSays(t *testing.T, args, says string) {
	t.Helper()
	dir := t.TempDir()
	script := "#!/bin/sh\n[ \"$*\" = '" + args + "' ] || exit 1\ncat <<'END'\n" + says + "END\n"
	assert.OK(t, os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte(script), 0o700))
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
}

func TestGPUUserNVIDIA(t *testing.T) {
	card := map[string]string{"sys/class/drm/card0/device/mem_info_vram_used": "0", "proc/driver/nvidia/version": "NVRM"}
	for name, c := range map[string]struct {
		rows string
		more map[string]string
		want string
	}{
		"no program":   {"    0          -     -      -      -    -\n", nil, ""},
		"a desktop":    {"    0         60     G    300      0    Xorg\n", nil, ""},
		"a game":       {"    0         51     C   9000      0    ollama\n    0         60     G   1024      0    game\n", nil, "game"},
		"the engine":   {"    0         51     C   9000      0    ollama\n", nil, ""},
		"nonsense":     {"No devices were found\n", nil, ""},
		"other user's": {"    0         70     C   9000      0    vllm\n", map[string]string{"proc/70/comm": "vllm", "proc/70/status": "PPid:\t1\nUid:\t998"}, "vllm"},
		"a service": {"    0         70     C   9000      0    vllm\n", map[string]string{"proc/70/comm": "vllm", "proc/70/status": "PPid:\t1\nUid:\t998",
			"proc/net/tcp6": "   0: 00000000000000000000000001000000:2CAA 0:0 0A 0:0 0:0 0 998 0 900 1"}, ""},
	} {
		nvidiaSMI(t, c.rows)
		files := gpuTree("60", 0, card)
		for name, text := range c.more {
			files[name] = text
		}
		assert.Equal(t, stage(t, files).GPUUser(t.Context(), []uint16{11434}), c.want, name, "uses the GPU")
	}
	nvidiaSMI(t, "    0         60     G   1024      0    game\n")
	if got := stage(t, gpuTree("60", 0, map[string]string{"sys/class/drm/card0/device/mem_info_vram_used": "0"})).GPUUser(t.Context(), nil); got != "" {
		t.Errorf("nvidia-smi is asked where there is no NVIDIA card: %q", got)
	}
}

// The kernel's own tables have the same format as the staged ones.
func TestListenersOfThisComputer(t *testing.T) {
	if _, err := os.Stat("/proc/net/tcp"); err != nil {
		return // the readings are Linux's
	}
	l := assert.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	found := Computer{}.listeners([]uint16{uint16(l.Addr().(*net.TCPAddr).Port)})
	assert.Require(t, len(found.sockets) == 1 && len(found.users) == 0, "found", found)
	if fds := linksTo("/proc/self", found.sockets[0]); len(fds) != 1 {
		t.Errorf("the socket is open at %v", fds)
	}
	if user, parent := userAndParent("/proc/self"); user != strconv.Itoa(os.Getuid()) || parent != strconv.Itoa(os.Getppid()) {
		t.Errorf("this process is of user %s, started by %s", user, parent)
	}
}

// The output of pmset, from the manual of macOS.
func TestPmset(t *testing.T) {
	if !pmsetOnBattery("Now drawing from 'Battery Power'\n -InternalBattery-0 (id=1)\t87%; discharging;") || pmsetOnBattery("Now drawing from 'AC Power'\n") {
		t.Error("`pmset -g batt` is misread")
	}
	if !pmsetHot("Note: No thermal warning level has been recorded\n \tCPU_Scheduler_Limit \t= 100\n\tCPU_Speed_Limit \t= 70\n") ||
		pmsetHot("\tCPU_Speed_Limit \t= 100\n") || pmsetHot("") {
		t.Error("`pmset -g therm` is misread")
	}
}
