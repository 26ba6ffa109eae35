package host

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// minGPUUse is how much GPU memory, in bytes, a program must use to count as a user of
// the GPU: a browser or a desktop uses less, a game or a training run more.
const minGPUUse = 1 << 30

// GPUUser returns the name of another program that uses 1 GiB or more of a GPU's memory,
// or "" if there is none. This process, the engines that listen on the given ports and
// their child processes do not count. It reads NVIDIA cards through nvidia-smi and AMD
// cards from /proc, which only shows processes of the same user. Other cards cannot be
// read.
func (c Computer) GPUUser(ctx context.Context, enginePorts []uint16) string {
	pids := append(c.nvidiaUsers(ctx), c.amdUsers()...)
	if pids == nil {
		return ""
	}
	engines := c.listeners(enginePorts)
	for _, pid := range pids {
		if !c.isOurs(pid, engines) {
			if name := readText(c.path("proc", pid, "comm")); name != "" {
				return name
			}
			return "process " + pid
		}
	}
	return ""
}

func (c Computer) nvidiaUsers(ctx context.Context) (pids []string) {
	// "# gpu  pid  type  fb  ccpm  command", then "# Idx  #  C/G  MB  MB  name",
	// then one row for each process, with "-" if there is none.
	for line := range strings.Lines(c.nvidia(ctx, "pmon", "-c", "1", "-s", "m")) {
		row := strings.Fields(line)
		if len(row) < 4 || row[0] == "#" {
			continue
		}
		mb, err := strconv.ParseUint(row[3], 10, 32)
		if err == nil && mb<<20 >= minGPUUse {
			pids = append(pids, row[1])
		}
	}
	return pids
}

// amdUsers returns the processes of this user that use an AMD card. It only reads the
// processes if enough memory of a card is in use.
func (c Computer) amdUsers() (pids []string) {
	inUse := slices.ContainsFunc(c.glob("sys/class/drm/card*/device/mem_info_vram_used"), func(file string) bool {
		n, ok := readNumber(file)
		return ok && n >= minGPUUse
	})
	if !inUse {
		return nil
	}
	for _, process := range c.glob("proc/[1-9]*") {
		clients := map[string]int64{} // by the kernel's client id; a process may have opened a client several times
		for _, fd := range linksTo(process, "/dev/dri/") {
			id, n := drmClient(filepath.Join(process, "fdinfo", fd))
			clients[id] = n
		}
		var sum int64
		for _, n := range clients {
			sum += n
		}
		if sum >= minGPUUse {
			pids = append(pids, filepath.Base(process))
		}
	}
	return pids
}

// linksTo returns the names of the links in a process's fd folder whose targets have the
// prefix.
func linksTo(process, prefix string) (names []string) {
	entries, _ := os.ReadDir(filepath.Join(process, "fd")) // those of other users cannot be read
	for _, entry := range entries {
		target, err := os.Readlink(filepath.Join(process, "fd", entry.Name()))
		if err == nil && strings.HasPrefix(target, prefix) {
			names = append(names, entry.Name())
		}
	}
	return names
}

// fields calls each for every line "key: words" of a file.
func fields(file string, each func(key string, words []string)) {
	for line := range strings.Lines(readText(file)) { // a process may end while it is read
		key, value, _ := strings.Cut(line, ":")
		if words := strings.Fields(value); len(words) > 0 {
			each(key, words)
		}
	}
}

// drmClient reads the id of a client and its video memory, in bytes, from a file in
// fdinfo (Documentation/gpu/drm-usage-stats.rst).
func drmClient(file string) (id string, bytes int64) {
	fields(file, func(key string, words []string) {
		switch key {
		case "drm-client-id":
			id = words[0]
		case "drm-memory-vram", "drm-resident-vram":
			n, _ := strconv.ParseInt(words[0], 10, 64)
			if len(words) == 2 {
				n *= map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20}[words[1]]
			}
			bytes = max(bytes, n)
		}
	})
	return id, bytes
}

// listeners are the sockets that listen on the engines' ports.
type listeners struct {
	sockets []string // in the format of the links in a process's fd folder
	users   []string // the users of the sockets, except this process's own
}

// listeners looks up the sockets in the kernel's tables of TCP sockets.
func (c Computer) listeners(ports []uint16) listeners {
	const listening = "0A"
	var found listeners
	for _, table := range []string{"proc/net/tcp", "proc/net/tcp6"} {
		for line := range strings.Lines(readText(c.path(table))) {
			row := strings.Fields(line)
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
	}
	return found
}

// isOurs reports whether the process or one of its ancestors is this process or an
// engine. The sockets of other users' processes cannot be read, so such a process counts
// as an engine if an engine runs as the same user.
func (c Computer) isOurs(pid string, engines listeners) bool {
	self := strconv.Itoa(os.Getpid())
	for range 64 { // a limit, because the process table changes while it is read
		if pid == self {
			return true
		}
		process := c.path("proc", pid)
		for _, socket := range engines.sockets {
			if len(linksTo(process, socket)) > 0 {
				return true
			}
		}
		user, parent := userAndParent(process)
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

func userAndParent(process string) (user, parent string) {
	fields(filepath.Join(process, "status"), func(key string, words []string) {
		switch key {
		case "Uid":
			user = words[0]
		case "PPid":
			parent = words[0]
		}
	})
	return user, parent
}
