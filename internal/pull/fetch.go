package pull

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/gofrs/flock"
	"github.com/shirou/gopsutil/v4/disk"
)

const (
	// attempts is how many times in a row a download may fail without receiving a byte.
	attempts = 6
	// silence is how long a download may receive no bytes.
	silence = 60 * time.Second
	// maxRetryAfter limits the wait that a server may request.
	maxRetryAfter = 2 * time.Minute
	// spare is how much disk space must stay free.
	spare = 256 << 20
	// partSuffix is the suffix of incomplete files.
	partSuffix = ".part"
)

// Progress is the progress of a download.
type Progress struct {
	File        string // being fetched or verified
	Done, Total int64  // in bytes, over all files; Total is -1 if unknown
	Verifying   bool   // existing bytes are being read
	// Waiting is why the download is pausing, or nil.
	Waiting error
}

// Fetch downloads the files of a model into folder. It skips files that are already there
// and identical. An interrupted download is resumed, in this call or a later one. It
// calls report as the download progresses.
func (s *Source) Fetch(ctx context.Context, m *Model, folder string, report func(Progress)) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	d := download{source: s, folder: folder, report: report, progress: Progress{Total: m.Size()}}
	if err := d.checkSpace(m); err != nil {
		return err
	}
	// The first file last, so that a watcher of the folder sees the model only when it is
	// complete.
	for _, f := range slices.Backward(m.Files) {
		if err := d.file(ctx, f); err != nil {
			return err
		}
	}
	return nil
}

// download is one call of Fetch.
type download struct {
	source   *Source
	folder   string
	report   func(Progress)
	progress Progress
}

func (d *download) path(name string) string { return filepath.Join(d.folder, filepath.FromSlash(name)) }

// partPath returns the path of an incomplete file. It differs between versions of the
// file.
func (d *download) partPath(f File) string {
	version := sha256.Sum256([]byte(f.URL + " " + f.SHA256 + " " + f.tag))
	return d.path(f.Name) + "." + hex.EncodeToString(version[:4]) + partSuffix
}

// ErrNoSpace is returned if the files do not fit on the disk.
var ErrNoSpace = errors.New("the disk is too full")

// checkSpace rejects a model that does not fit on the disk.
func (d *download) checkSpace(m *Model) error {
	var needed int64
	for _, f := range m.Files {
		if _, err := os.Stat(d.path(f.Name)); err == nil {
			continue // already there, or another version that will be replaced
		}
		needed += max(f.Size, 0)
		if part, err := os.Stat(d.partPath(f)); err == nil {
			needed -= part.Size()
		}
	}
	usage, err := diskUsage(d.folder)
	if err != nil || needed <= 0 {
		return nil // writing reports a better error
	}
	if free := int64(usage.Free); needed+spare > free {
		return fmt.Errorf("%w: it needs %s, and %s has %s free: make room", ErrNoSpace, Bytes(needed+spare), d.folder, Bytes(free))
	}
	return nil
}

// file downloads one file and renames it when it is complete.
func (d *download) file(ctx context.Context, f File) error {
	path, part := d.path(f.Name), d.partPath(f)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	d.progress.File = f.Name
	began := d.progress.Done
	same, err := d.isThere(ctx, path, f)
	if same || err != nil {
		return err
	}
	d.progress.Done = began
	unlock, err := lockFile(part + ".lock")
	if err != nil {
		return err
	} else if unlock == nil {
		return temporary{fmt.Errorf("another kith fetches %s just now: wait for it", f.Name)}
	}
	defer unlock()
	out, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	sum := sha256.New()
	if err := d.read(ctx, out, sum); err != nil {
		return err
	}
	err = d.complete(ctx, f, out, sum)
	if err == nil {
		err = checkModel(f, out)
	}
	if errors.Is(err, errNotFile) || errors.Is(err, ErrNoSpace) && f.Size < 0 {
		out.Close()
		os.Remove(part)
		return fmt.Errorf("%s %w", f.URL, err)
	}
	if err != nil {
		if info, failed := out.Stat(); failed == nil && info.Size() == 0 {
			os.Remove(part)
		}
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); f.SHA256 != "" && got != f.SHA256 {
		out.Close()
		os.Remove(part)
		return fmt.Errorf("%s is damaged: its SHA-256 is %s, not %s: what was fetched is deleted, try again", f.URL, got, f.SHA256)
	}
	if err := errors.Join(out.Sync(), out.Close()); err != nil {
		return err
	}
	if err := os.Rename(part, path); err != nil {
		return err
	}
	return Forget(path)
}

// lockFile locks the file at path, which it creates, until unlock removes it. unlock is nil
// if another process or call has it.
func lockFile(path string) (unlock func(), err error) {
	for {
		lock := flock.New(path)
		if locked, err := lock.TryLock(); err != nil || !locked {
			return nil, err
		}
		mine, err := lock.Stat()
		if err != nil {
			lock.Unlock()
			return nil, err
		}
		if now, err := os.Stat(path); err != nil || !os.SameFile(mine, now) {
			lock.Unlock() // its last owner removed it after it was opened here
			continue
		}
		return func() {
			removed := os.Remove(path)
			lock.Unlock()
			if removed != nil { // Windows removes no file that is open
				os.Remove(path)
			}
		}, nil
	}
}

// errNotFile is returned if the bytes are not those of the file, so that none are kept.
var errNotFile = errors.New("is not the model")

// checkModel returns errNotFile if the content is not a model. It is needed because a
// sign-in page can have any address and a success status.
func checkModel(f File, out io.ReaderAt) error {
	if f.SHA256 != "" {
		return nil
	}
	magic := make([]byte, len(ggufMagic))
	n, err := out.ReadAt(magic, 0)
	if err != nil && err != io.EOF {
		return err
	}
	if magic = magic[:n]; string(magic) != ggufMagic {
		return fmt.Errorf("%w: it begins with %q, and a GGUF file with %q; if it is a page, open it in a browser and copy the address of the file itself", errNotFile, magic, ggufMagic)
	}
	return nil
}

// ggufMagic is the start of every GGUF file.
const ggufMagic = "GGUF"

// Forget removes incomplete downloads of the file at path.
func Forget(path string) error {
	entries, err := os.ReadDir(filepath.Dir(path))
	for _, e := range entries {
		if name := e.Name(); strings.HasPrefix(name, filepath.Base(path)+".") && strings.HasSuffix(name, partSuffix) {
			err = errors.Join(err, os.Remove(filepath.Join(filepath.Dir(path), name)))
		}
	}
	return err
}

// isThere reports whether the file at path is identical to f.
func (d *download) isThere(ctx context.Context, path string, f File) (bool, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() != f.Size {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	in, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer in.Close()
	if f.SHA256 == "" {
		if err := checkModel(f, in); err != nil {
			return false, nil // download it again
		}
		d.add(f.Size)
		return true, nil
	}
	sum := sha256.New()
	err = d.read(ctx, in, sum)
	return hex.EncodeToString(sum.Sum(nil)) == f.SHA256, err
}

func (d *download) add(n int64) {
	d.progress.Done += n
	d.report(d.progress)
}

// read adds the content of a file to sum.
func (d *download) read(ctx context.Context, in io.Reader, sum hash.Hash) error {
	d.progress.Verifying = true
	defer func() { d.progress.Verifying = false }()
	buffer := make([]byte, 1<<20)
	for {
		n, err := in.Read(buffer)
		sum.Write(buffer[:n])
		d.add(int64(n))
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
}

// complete downloads the missing part of the file and appends it to out. It retries after
// temporary failures.
func (d *download) complete(ctx context.Context, f File, out *os.File, sum hash.Hash) error {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = time.Second, 30*time.Second
	failures := 0
	for {
		before := d.progress.Done
		err := d.attempt(ctx, f, out, sum)
		if err == nil {
			return nil
		}
		var fatal *backoff.PermanentError
		if ctx.Err() != nil {
			return ctx.Err()
		} else if errors.As(err, &fatal) {
			return fatal.Err
		}
		if failures++; d.progress.Done > before {
			failures = 1
			pause.Reset()
		}
		if failures >= attempts {
			return temporary{fmt.Errorf("%w: run the same command again, it resumes this download", err)}
		}
		wait := pause.NextBackOff()
		var later *backoff.RetryAfterError
		if errors.As(err, &later) {
			wait = max(wait, min(later.Duration, maxRetryAfter))
		}
		d.progress.Waiting = err
		d.report(d.progress)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
		d.progress.Waiting = nil
	}
}

// attempt makes one request for the missing part of the file, starting at the end of out.
func (d *download) attempt(ctx context.Context, f File, out *os.File, sum hash.Hash) error {
	at, err := out.Seek(0, io.SeekEnd)
	if err != nil {
		return backoff.Permanent(err)
	}
	if at == f.Size {
		return nil
	}
	// Without a checksum, only the version shows that the rest belongs to the same file.
	version := f.tag
	if f.SHA256 != "" || !strings.HasPrefix(version, `"`) && !isTime(version) {
		version = ""
	}
	if at > 0 && (f.Size >= 0 && at > f.Size || f.SHA256 == "" && version == "") {
		if err := d.restart(out, sum, at); err != nil {
			return err
		}
		at = 0
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(silence, func() { cancel(fmt.Errorf("nothing came for %s", silence)) })
	defer silent.Stop()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.URL, nil)
	if err != nil {
		return backoff.Permanent(err)
	}
	if at > 0 {
		request.Header.Set("Range", "bytes="+strconv.FormatInt(at, 10)+"-")
		if version != "" {
			request.Header.Set("If-Range", version)
		}
	}
	response, err := d.source.do(request)
	if errors.Is(err, errRedirect) || errors.Is(err, errPrivate) {
		return backoff.Permanent(err)
	} else if err != nil {
		return err
	}
	defer response.Body.Close()
	switch code := response.StatusCode; {
	case code == http.StatusOK && at > 0: // the server ignores the range, or the file changed
		if err := d.restart(out, sum, at); err != nil {
			return err
		}
	case code == http.StatusOK:
	case code == http.StatusPartialContent && strings.HasPrefix(response.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", at)) &&
		(version == "" || cmp.Or(versionOf(response.Header), version) == version): // some servers ignore If-Range
	case code == http.StatusPartialContent, code == http.StatusRequestedRangeNotSatisfiable:
		if err := d.restart(out, sum, at); err != nil {
			return err
		}
		return fmt.Errorf("%s answers %s to a request for the rest", request.URL.Host, response.Status)
	case code == http.StatusTooManyRequests, code >= 500:
		err := d.source.refused(response, request.URL.Host)
		if seconds, ok := strconv.Atoi(response.Header.Get("Retry-After")); ok == nil && seconds > 0 {
			return fmt.Errorf("%w (%w)", err, backoff.RetryAfter(seconds))
		}
		return err
	default:
		return backoff.Permanent(d.source.refused(response, f.URL))
	}
	return d.copy(ctx, f, out, sum, response, silent)
}

// isTime reports whether the text is an HTTP date.
func isTime(text string) bool {
	_, err := http.ParseTime(text)
	return err == nil
}

// copy appends a response's body to out.
func (d *download) copy(ctx context.Context, f File, out *os.File, sum hash.Hash, response *http.Response, silent *time.Timer) error {
	buffer := make([]byte, 256<<10)
	begins, fits := true, int64(0)
	for {
		n, err := response.Body.Read(buffer)
		if n > 0 {
			silent.Reset(silence)
			if fits -= int64(n); fits < 0 {
				if fits, err = d.room(f); err != nil {
					return backoff.Permanent(err)
				}
			}
			if _, err := out.Write(buffer[:n]); err != nil {
				return backoff.Permanent(err)
			}
			sum.Write(buffer[:n])
			d.add(int64(n))
			if err := d.looksRight(f, out, &begins); err != nil {
				return backoff.Permanent(err)
			}
		}
		switch {
		case err == io.EOF:
			return d.ended(f, out)
		case err != nil:
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return fmt.Errorf("the download of %s was interrupted: %w", f.Name, err)
		}
	}
}

// room returns how many bytes may be written until the disk is checked again. A file of
// known length had room when its download began, but other programs write, too; nothing
// else limits a body of unknown length.
func (d *download) room(f File) (int64, error) {
	const step = 64 << 20
	usage, err := diskUsage(d.folder)
	switch {
	case err != nil || usage.Free > spare+step:
		return step, nil
	case f.Size < 0:
		return 0, fmt.Errorf("%w: %s has %s free, and the server does not say how large the file is: make room", ErrNoSpace, d.folder, Bytes(int64(usage.Free)))
	case usage.Free < spare/2:
		return 0, fmt.Errorf("%w: %s has only %s free while %s comes: make room", ErrNoSpace, d.folder, Bytes(int64(usage.Free)), f.Name)
	}
	return min(step, spare/2), nil
}

// DiskFree returns how many bytes of a folder's disk a pull may use; 0 if that is unknown.
func DiskFree(folder string) int64 {
	usage, err := diskUsage(folder)
	if err != nil {
		return 0
	}
	return max(int64(usage.Free)-spare, 0)
}

// diskUsage is disk.Usage. Tests replace it.
var diskUsage = disk.Usage

// looksRight returns errNotFile if out is longer than the file, or does not start like a
// model.
func (d *download) looksRight(f File, out *os.File, begins *bool) error {
	at, err := out.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	if f.Size >= 0 && at > f.Size {
		return fmt.Errorf("%w: the server announced %d bytes and sends more; check the address, and try again", errNotFile, f.Size)
	}
	if !*begins || at < int64(len(ggufMagic)) {
		return nil
	}
	*begins = false
	return checkModel(f, out)
}

// ended checks the length of a file after the end of the body.
func (d *download) ended(f File, out *os.File) error {
	at, err := out.Seek(0, io.SeekEnd)
	if err != nil {
		return backoff.Permanent(err)
	}
	if f.Size >= 0 && at != f.Size {
		return fmt.Errorf("the download of %s ended after %d of %d bytes", f.Name, at, f.Size)
	}
	return nil
}

// restart discards the at bytes that were downloaded.
func (d *download) restart(out *os.File, sum hash.Hash, at int64) error {
	sum.Reset()
	d.add(-at)
	_, err := out.Seek(0, io.SeekStart)
	if err = errors.Join(err, out.Truncate(0)); err != nil {
		return backoff.Permanent(err)
	}
	return nil
}

// Bytes formats a size for people, such as "2.5 GB".
func Bytes(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.1f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.0f MB", float64(n)/1e6)
	default:
		return fmt.Sprintf("%d kB", (n+999)/1000)
	}
}
