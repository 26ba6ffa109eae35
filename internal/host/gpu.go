package host

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// held is how much of a GPU's memory, in bytes, a program holds at least for it
// to matter: a browser or a desktop holds less, a game or a training run more.
const held = 1 << 30

// GPUHolder names another program that holds a GPU's memory, 1 GiB or more;
// empty: none. This process and what it started are none, nor are the engines
// that listen on those ports of this computer, and what they started. NVIDIA's
// cards are read by nvidia-smi, AMD's from /proc, where only processes of the
// same user can be seen into; others cannot be read.
func (c Computer) GPUHolder(ctx context.Context, engines []uint16) string {
	holders := c.nvidia(ctx)
	holders = append(holders, c.amd()...)
	if holders == nil {
		return ""
	}
	ours := c.listeners(engines)
	for _, pid := range holders {
		if !c.isOurs(pid, ours) {
			if name := c.line("proc", pid, "comm"); name != "" {
				return name
			}
			return "process " + pid
		}
	}
	return ""
}

// nvidia are the processes that hold memory of an NVIDIA card.
func (c Computer) nvidia(ctx context.Context) (pids []string) {
	if _, err := os.Stat(c.path("proc/driver/nvidia")); err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	told, err := exec.CommandContext(ctx, "nvidia-smi", "pmon", "-c", "1", "-s", "m").Output()
	if err != nil {
		return nil
	}
	// "# gpu  pid  type  fb  ccpm  command", then "# Idx  #  C/G  MB  MB  name",
	// then a row a process; "-" for none.
	for line := range strings.Lines(string(told)) {
		row := strings.Fields(line)
		if len(row) < 4 || row[0] == "#" {
			continue
		}
		mb, err := strconv.ParseUint(row[3], 10, 32)
		if err == nil && mb<<20 >= held {
			pids = append(pids, row[1])
		}
	}
	return pids
}

// amd are the processes of this user that hold memory of an AMD card. Processes
// are looked through only while that much is held at all.
func (c Computer) amd() (pids []string) {
	inUse := slices.ContainsFunc(c.glob("sys/class/drm/card*/device/mem_info_vram_used"), func(file string) bool {
		n, ok := number(file)
		return ok && n >= held
	})
	if !inUse {
		return nil
	}
	for _, process := range c.glob("proc/[1-9]*") {
		clients := map[string]int64{} // by the kernel's id: one may be open many times
		for _, fd := range linksTo(process, "/dev/dri/") {
			id, n := drmClient(filepath.Join(process, "fdinfo", fd))
			clients[id] = n
		}
		var sum int64
		for _, n := range clients {
			sum += n
		}
		if sum >= held {
			pids = append(pids, filepath.Base(process))
		}
	}
	return pids
}

// linksTo are the names in a process's fd folder whose links begin so.
func linksTo(process, prefix string) (names []string) {
	entries, _ := os.ReadDir(filepath.Join(process, "fd")) // another user's cannot be read
	for _, entry := range entries {
		target, err := os.Readlink(filepath.Join(process, "fd", entry.Name()))
		if err == nil && strings.HasPrefix(target, prefix) {
			names = append(names, entry.Name())
		}
	}
	return names
}

// drmClient reads the client's id and its bytes of video memory from a file of
// fdinfo (Documentation/gpu/drm-usage-stats.rst).
func drmClient(file string) (id string, bytes int64) {
	text, _ := os.ReadFile(file) // a process may end while it is read
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		switch {
		case len(fields) == 0:
		case key == "drm-client-id":
			id = fields[0]
		case key == "drm-memory-vram" || key == "drm-resident-vram":
			n, _ := strconv.ParseInt(fields[0], 10, 64)
			if len(fields) == 2 {
				n *= map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20}[fields[1]]
			}
			bytes = max(bytes, n)
		}
	}
	return id, bytes
}

// owners are who listens on the engines' ports.
type owners struct {
	sockets []string // as links of a process's fd folder name them
	users   []string // other than this process's own
}

// listeners reads the kernel's tables of TCP sockets.
func (c Computer) listeners(ports []uint16) owners {
	const listening = "0A"
	var found owners
	for _, table := range []string{"proc/net/tcp", "proc/net/tcp6"} {
		file, err := os.Open(c.path(table))
		if err != nil {
			continue
		}
		for lines := bufio.NewScanner(file); lines.Scan(); {
			row := strings.Fields(lines.Text())
			if len(row) < 10 || row[3] != listening {
				continue
			}
			_, text, _ := strings.Cut(row[1], ":")
			port, err := strconv.ParseUint(text, 16, 16)
			if err != nil || !slices.Contains(ports, uint16(port)) {
				continue
			}
			found.sockets = append(found.sockets, "socket:["+row[9]+"]")
			if row[7] != strconv.Itoa(os.Getuid()) {
				found.users = append(found.users, row[7])
			}
		}
		file.Close()
	}
	return found
}

// isOurs reports whether the process, or one that it descends from, is this one
// or an engine. Of another user's process the sockets cannot be seen: it counts
// as an engine's if an engine runs under that user.
func (c Computer) isOurs(pid string, engines owners) bool {
	self := strconv.Itoa(os.Getpid())
	for range 64 { // a chain of parents ends; a damaged table might not
		if pid == self {
			return true
		}
		process := c.path("proc", pid)
		for _, socket := range engines.sockets {
			if len(linksTo(process, socket)) > 0 {
				return true
			}
		}
		user, parent := statusOf(process)
		if slices.Contains(engines.users, user) {
			return true
		}
		if parent == "" || parent == "0" || parent == "1" {
			return false
		}
		pid = parent
	}
	return false
}

// statusOf reads whose a process is and which one started it.
func statusOf(process string) (user, parent string) {
	for line := range strings.Lines(fileLine(process, "status")) {
		key, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		switch {
		case len(fields) == 0:
		case key == "Uid":
			user = fields[0]
		case key == "PPid":
			parent = fields[0]
		}
	}
	return user, parent
}
