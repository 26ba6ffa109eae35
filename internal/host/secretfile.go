package host

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// CheckSecretFile returns an error if users who should not have access can read or change
// the file, which holds a secret. The owner may do both, and the group may read it,
// because services read keys through their group. Files that an orchestrator mounts have
// the modes 0644 or 0444 and are accepted, because only the processes of the container
// can reach them.
func CheckSecretFile(name string) error {
	_, err := checkSecret(name)
	return err
}

// WhyAccepted explains why CheckSecretFile accepts a file whose mode gives access to
// others. It returns "" if the mode does not, or if the file is refused.
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
	// Windows has no mode bits; the access list of the profile protects the file.
	if runtime.GOOS == "windows" || mode&0o037 == 0 {
		return "", nil
	}
	if where := mountedSecret(file, mode); where != "" {
		return fmt.Sprintf("its mode %04o gives others access, and it is accepted since it is on %s", mode, where), nil
	}
	return "", fmt.Errorf("its mode %04o gives others access; run `chmod 600 %s`, or `chmod 640 %s` if it is the service's group that reads it", mode, name, name)
}

// mountedSecret describes the mount that the file is on, if it is a separate mount that
// is either read-only, as in Compose and Swarm, or a tmpfs, as in Kubernetes. Otherwise
// it returns "". A tmpfs for everyone's temporary files does not count. Neither does the
// root: systemd makes it read-only for a service (ProtectSystem=strict), but other users
// can still read it.
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

// mount is a mount of this process, as described in proc_pid_mountinfo(5).
type mount struct {
	point    string
	readOnly bool
	part     bool // a folder or a file of a file system, not all of it
	memory   bool // a tmpfs or ramfs
}

// mountOf returns the mount that contains an open file. It works only on Linux.
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

// unescaped restores the characters that mountinfo escapes in paths.
var unescaped = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// ReadText reads a file that a person or this program wrote. It removes a byte order
// mark, which some editors add. It refuses empty files, which result from a full disk or
// a power cut, and files in UTF-16.
func ReadText(name string) ([]byte, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(name)
	regular := err == nil && info.Mode().IsRegular() // /dev/null is empty on purpose
	switch {
	case bytes.HasPrefix(text, []byte("\xff\xfe")), bytes.HasPrefix(text, []byte("\xfe\xff")):
		return nil, fmt.Errorf("%s is in UTF-16, as Windows' Notepad and PowerShell's > write it: save it as UTF-8", name)
	case len(text) == 0 && regular:
		return nil, fmt.Errorf("%s is empty, as a full disk or a power cut leaves it: restore it, or remove it", name)
	}
	return bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")), nil
}
