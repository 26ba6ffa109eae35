//go:build unix

package main

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// releases serves releases as their site does: each below its tag, and the newest below
// "latest".
func releases(t *testing.T, versions ...string) (url string, folders []string) {
	t.Helper()
	mux := http.NewServeMux()
	for _, version := range versions {
		r := fakeRelease(t, version)
		r.buildAll(t)
		folders = append(folders, r.out)
		mux.Handle("/download/v"+version+"/", http.StripPrefix("/download/v"+version, http.FileServer(http.Dir(r.out))))
	}
	mux.Handle("/latest/download/", http.StripPrefix("/latest/download", http.FileServer(http.Dir(folders[len(folders)-1]))))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL, folders
}

// install runs install.sh in a home folder and returns what it printed.
func install(t *testing.T, home, url string, settings ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", filepath.Join(repository(t), "install.sh"))
	cmd.Dir = t.TempDir()
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + t.TempDir(), "KITH_RELEASES=" + url}, settings...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func version(t *testing.T, program string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, "version").Output()
	if err != nil {
		t.Error(err)
	}
	return strings.TrimSpace(string(out))
}

func TestInstaller(t *testing.T) {
	url, folders := releases(t, "1.2.3", "1.3.0")
	home := t.TempDir()
	program := filepath.Join(home, ".local/bin/kith")

	out, err := install(t, home, url, "KITH_VERSION=v1.2.3")
	if err != nil || version(t, program) != "kith 1.2.3" {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"kith_1.2.3_", "its checksum is right", "installing below " + home + "/.local", "add " + home + "/.local/bin to your PATH", "kith dev"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
	for _, name := range []string{"share/man/man1/kith-hub.1", "share/bash-completion/completions/kith", "share/zsh/site-functions/_kith", "share/fish/vendor_completions.d/kith.fish"} {
		if _, err := os.Stat(filepath.Join(home, ".local", name)); err != nil {
			t.Error(err)
		}
	}

	// The newest replaces it. A folder on the PATH needs no advice.
	out, err = install(t, home, url, "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"))
	if err != nil || version(t, program) != "kith 1.3.0" || strings.Contains(out, "to your PATH") {
		t.Errorf("%v\n%s", err, out)
	}
	compare(t, listFiles(t, filepath.Join(home, ".local/bin")), []string{"/kith 0755"})

	// Another folder.
	other := t.TempDir()
	if out, err := install(t, home, url, "KITH_PREFIX="+other); err != nil || version(t, other+"/bin/kith") != "kith 1.3.0" {
		t.Errorf("%v\n%s", err, out)
	}

	// A release that is not there, and a damaged one, leave what is installed.
	out, err = install(t, home, url, "KITH_VERSION=9.9.9")
	if err == nil || !strings.Contains(out, "install: cannot download "+url+"/download/v9.9.9/SHA256SUMS") {
		t.Errorf("%v\n%s", err, out)
	}
	archives, err := filepath.Glob(filepath.Join(folders[0], "kith*.tar.gz"))
	if err != nil || len(archives) == 0 {
		t.Fatal(err)
	}
	for _, name := range archives {
		ok(t, os.WriteFile(name, []byte("damaged"), 0o644))
	}
	out, err = install(t, home, url, "KITH_VERSION=1.2.3")
	if err == nil || !strings.Contains(out, "is not what the release's checksums say") || version(t, program) != "kith 1.3.0" {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestInstallerStaysInTLS: a release at an https address that points to http is not taken,
// by curl or by wget; one that points to https is.
func TestInstallerStaysInTLS(t *testing.T) {
	plain, _ := releases(t, "1.2.3")
	behind := value(url.Parse(plain))(t)
	pass := httputil.NewSingleHostReverseProxy(behind)
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch path, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/"); path {
		case "down":
			http.Redirect(w, r, plain+"/"+rest, http.StatusFound)
		case "same":
			http.Redirect(w, r, "/there/"+rest, http.StatusFound)
		default:
			r.URL.Path = "/" + rest
			pass.ServeHTTP(w, r)
		}
	}))
	defer secure.Close()
	settings := t.TempDir()
	authority := filepath.Join(settings, "ca.pem")
	write(t, authority, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})), 0o644)
	write(t, filepath.Join(settings, "wgetrc"), "ca_certificate = "+authority+"\n", 0o644)
	for _, tool := range []string{"curl", "wget"} {
		tools := t.TempDir() // without the other one
		for _, name := range strings.Fields("sh uname getconf cut mktemp grep tar gzip sha256sum rm cp mv chmod mkdir dirname " + tool) {
			path, err := exec.LookPath(name)
			if err != nil && name != tool {
				t.Fatal(err)
			}
			if err == nil {
				err = os.Symlink(path, filepath.Join(tools, name))
			}
			if err != nil {
				t.Errorf("there is no %s: %v", name, err)
			}
		}
		for way, want := range map[string]string{"down": "it points to an address without TLS", "same": "its checksum is right"} {
			out, err := install(t, t.TempDir(), secure.URL+"/"+way, "PATH="+tools, "CURL_CA_BUNDLE="+authority, "WGETRC="+filepath.Join(settings, "wgetrc"))
			if (err == nil) != (way == "same") || !strings.Contains(out, want) {
				t.Errorf("%s, %s: %v\n%s", tool, way, err, out)
			}
		}
	}
}

// TestInstallerWithoutRoom: a full disk, a folder that cannot be written and one mounted
// noexec are named, with what to set, and nothing is installed.
func TestInstallerWithoutRoom(t *testing.T) {
	url, _ := releases(t, "1.2.3")
	const noexec = "#!/bin/sh\ncase \"$2\" in FOLDER/*.kith-runs) exit 0 ;; esac\nexec CHMOD \"$@\"\n" // it stays not executable
	for name, c := range map[string]struct{ tool, script, want string }{
		"full while it downloads":  {"curl", "#!/bin/sh\nexit 23\n", "SHA256SUMS: the disk is full or read-only; free some space, or set TMPDIR"},
		"full while it unpacks":    {"tar", "#!/bin/sh\nexit 2\n", "the disk is full or read-only"},
		"no folder":                {"mktemp", "#!/bin/sh\nexit 1\n", "install: cannot write in <tmp>: the disk is full or read-only"},
		"noexec":                   {"chmod", noexec, "programs may not run in <tmp>, which is mounted noexec; set TMPDIR"},
		"noexec where it is to be": {"chmod", strings.Replace(noexec, "FOLDER", "*/bin", 1), "not run there, as on a disk mounted noexec; choose another folder with KITH_PREFIX"},
	} {
		tools, home, tmp := t.TempDir(), t.TempDir(), t.TempDir()
		chmod, err := exec.LookPath("chmod")
		ok(t, err)
		write(t, filepath.Join(tools, c.tool), strings.NewReplacer("FOLDER", tmp, "CHMOD", chmod).Replace(c.script), 0o755)
		out, err := install(t, home, url, "PATH="+tools+":"+os.Getenv("PATH"), "TMPDIR="+tmp)
		if err == nil || !strings.Contains(out, strings.ReplaceAll(c.want, "<tmp>", tmp)) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		if _, err := os.Stat(filepath.Join(home, ".local/bin/kith")); err == nil {
			t.Errorf("%s: it is installed", name)
		}
	}
}

// TestInstallerElsewhere: on other systems the installer takes their archive, the static
// one where there is no glibc, or says that there is none.
func TestInstallerElsewhere(t *testing.T) {
	url, _ := releases(t, "1.2.3")
	for _, c := range []struct{ system, processor, glibc, want string }{
		{"Linux", "x86_64", "glibc 2.36", "kith_1.2.3_linux_amd64.tar.gz"},
		{"Linux", "aarch64", "glibc 2.34.9000", "kith_1.2.3_linux_arm64.tar.gz"},
		{"Linux", "x86_64", "glibc 2.31", "kith-slim_1.2.3_linux_amd64.tar.gz"},
		{"Linux", "aarch64", "", "kith-slim_1.2.3_linux_arm64.tar.gz"},
		{"Darwin", "arm64", "", "kith_1.2.3_darwin_arm64.tar.gz"},
		{"Darwin", "x86_64", "", "brew install llama.cpp"},
		{"Linux", "riscv64", "glibc 2.36", "no release for the processor riscv64"},
		{"FreeBSD", "amd64", "", "no release for FreeBSD"},
	} {
		tools := t.TempDir()
		write(t, filepath.Join(tools, "uname"), "#!/bin/sh\n[ \"$1\" = -s ] && echo "+c.system+" || echo "+c.processor+"\n", 0o755)
		write(t, filepath.Join(tools, "getconf"), "#!/bin/sh\n[ -n \"$1\" ] && [ -n '"+c.glibc+"' ] && echo "+c.glibc+"\n", 0o755)
		out, err := install(t, t.TempDir(), url, "PATH="+tools+":"+os.Getenv("PATH"))
		if refused := strings.HasPrefix(c.want, "no release"); refused != (err != nil) || !strings.Contains(out, c.want) {
			t.Errorf("%v: %v\n%s", c, err, out)
		}
	}
}
