package host

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// CheckSecretFile returns an error if users other than those meant to can read or change
// the file, which holds a secret. Its owner may do both and its group may read it, because
// a service reads its key through its group. A file that an orchestrator mounts has other
// modes, 0644 or 0444, and is accepted with them: where it is mounted, only the container's
// own processes can reach it.
func CheckSecretFile(name string) error {
	_, err := checkSecret(name)
	return err
}

// WhyAccepted returns why CheckSecretFile accepts a file although its mode gives others
// access; empty if the mode does not, or the file is refused.
func WhyAccepted(name string) string {
	why, _ := checkSecret(name)
	return why
}

func checkSecret(name string) (accepted string, err error) {
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	mode := info.Mode().Perm()
	// Windows has no mode bits; the access list of the profile protects the file there.
	if runtime.GOOS == "windows" || mode&0o037 == 0 {
		return "", nil
	}
	if where := mountedSecret(file, mode); where != "" {
		return fmt.Sprintf("its mode %04o gives others access, and it is accepted since it is on %s", mode, where), nil
	}
	return "", fmt.Errorf("its mode %04o gives others access; run `chmod 600 %s`, or `chmod 640 %s` if it is the service's group that reads it", mode, name, name)
}

// mountedSecret describes the mount of its own that the file is on if that is read-only, as
// Compose and Swarm mount a secret, or a tmpfs, as Kubernetes does; else it is empty. A tmpfs
// for everyone's temporary files does not count, nor does the root: systemd makes all of it
// read-only for a service (ProtectSystem=strict), while other users read it as before.
func mountedSecret(file *os.File, mode fs.FileMode) string {
	m, err := mountOf(file)
	if err != nil || m.point == "/" {
		return ""
	}
	if m.readOnly && (m.part || m.memory) {
		return "a mount of its own that is read-only, " + m.point
	}
	folder, err := os.Stat(m.point)
	if err == nil && m.memory && mode&0o022 == 0 && folder.Mode()&fs.ModeSticky == 0 {
		return "a tmpfs of its own, " + m.point
	}
	return ""
}

// mount is one mount of this process, as proc_pid_mountinfo(5) describes it.
type mount struct {
	point    string
	readOnly bool
	part     bool // of a folder or a file of a file system, rather than all of it
	memory   bool // a tmpfs or ramfs
}

// mountOf returns the mount that an open file is on. Only Linux has one.
func mountOf(file *os.File) (mount, error) {
	about, err := os.ReadFile(filepath.Join("/proc/self/fdinfo", fmt.Sprint(file.Fd())))
	if err != nil {
		return mount{}, err
	}
	_, id, _ := strings.Cut(string(about), "mnt_id:")
	id, _, _ = strings.Cut(strings.TrimSpace(id), "\n")
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return mount{}, err
	}
	defer mounts.Close()
	// 36 35 98:0 /part/of/it /point rw,noatime master:1 - ext3 /dev/root rw,errors=continue
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		here, system, _ := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(here)
		if len(fields) < 6 || fields[0] != id {
			continue
		}
		options, kind := fields[5], strings.Fields(system)[0]
		return mount{
			point: unescaped.Replace(fields[4]), part: fields[3] != "/", memory: kind == "tmpfs" || kind == "ramfs",
			readOnly: options == "ro" || strings.HasPrefix(options, "ro,"),
		}, nil
	}
	return mount{}, errors.New("the mount is not listed")
}

// unescaped restores the characters that mountinfo escapes in a path.
var unescaped = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
