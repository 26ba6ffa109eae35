// Package pull downloads model files into the folder that the daemon serves, either from
// a model hub with Hugging Face's API or from any URL. It resumes interrupted downloads,
// and verifies every file with a known SHA-256 before it gets its final name.
package pull

import (
	"cmp"
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
)

// DefaultEndpoint is the model hub for references like hf.co/ORG/REPO.
const DefaultEndpoint = "https://huggingface.co"

// DefaultQuant is the quantization to fetch if a repository has several and the reference
// names none.
const DefaultQuant = "Q4_K_M"

// Source is the source of models.
type Source struct {
	Endpoint string // address of the model hub; empty: DefaultEndpoint
	Token    string // sent only to the model hub; empty: none
	Client   *http.Client
	// Images also fetches the file that lets a model accept images, if the repository has
	// one.
	Images bool
	// Public is set for references that someone sent from elsewhere. Client is then a
	// NewPublicClient.
	Public bool
}

// Model is a model's files.
type Model struct {
	ID     string // the id that the daemon offers it as
	Origin string // the page or URL of its source
	Files  []File // the model or its parts in order, then others
	// TakesImages reports whether the repository has the file for images.
	TakesImages bool
}

// File is one file of a model.
type File struct {
	Name   string // in the models folder, with slashes
	URL    string
	Size   int64  // in bytes; -1: unknown
	SHA256 string // in hex; empty: unknown
	tag    string // the file's version, from versionOf or the model hub
}

// Size returns the total size in bytes, or -1 if the size of a file is unknown.
func (m *Model) Size() (total int64) {
	for _, f := range m.Files {
		if f.Size < 0 {
			return -1
		}
		total += f.Size
	}
	return total
}

// ErrUnknown is returned for a reference that is neither a name in the list nor a
// repository or URL.
var ErrUnknown = errors.New("it is neither a name in the list nor a repository or URL")

// target is what a reference names: the URL of a file, or a repository of the model hub.
type target struct {
	file         *url.URL
	repo, choice string
}

// repoName matches a repository of a model hub.
var repoName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,95}/[A-Za-z0-9_][A-Za-z0-9._-]{0,95}$`)

// Check returns why a reference cannot name a model of this source, or nil. It sends
// nothing.
func (s *Source) Check(reference string) error {
	_, err := s.target(reference)
	return err
}

func (s *Source) target(reference string) (target, error) {
	if own, err := url.Parse(s.endpoint()); err != nil || own.Host == "" || own.Scheme != "https" && own.Scheme != "http" {
		return target{}, fmt.Errorf("HF_ENDPOINT is %q, and has to be an address such as %s", s.endpoint(), DefaultEndpoint)
	}
	if listed := Find(reference); listed != nil {
		reference = listed.From
	}
	if u, err := url.Parse(reference); err == nil && u.Host != "" {
		if u.Scheme != "https" && u.Scheme != "http" {
			return target{}, fmt.Errorf("%w: it begins with neither https:// nor http://", ErrUnknown)
		}
		repo, file, ok := s.inHub(u)
		switch {
		case !ok:
			return target{file: u}, s.checkURL(u)
		case repoName.MatchString(repo):
			return target{repo: repo, choice: file}, nil
		}
		return target{}, fmt.Errorf("%w: the address does not contain a repository", ErrUnknown)
	}
	repo := reference
	for _, host := range hubHosts {
		repo = strings.TrimPrefix(repo, host+"/")
	}
	repo, choice, _ := strings.Cut(repo, ":")
	if !repoName.MatchString(repo) {
		return target{}, ErrUnknown
	}
	return target{repo: repo, choice: choice}, nil
}

// checkURL rejects the URL of a file that the source does not fetch.
func (s *Source) checkURL(u *url.URL) error {
	if s.Public && u.User != nil {
		return errors.New("the address has a password in it: fetch it on the machine itself")
	}
	if s.Public && isPrivateName(u.Hostname()) {
		return errPrivate
	}
	return checkName(path.Base(u.Path))
}

// Resolve returns the model for a reference: a name in the list, hf.co/ORG/REPO with an
// optional :QUANT or :FILE, or the URL of a GGUF file.
func (s *Source) Resolve(ctx context.Context, reference string) (*Model, error) {
	t, err := s.target(reference)
	switch {
	case err != nil:
		return nil, err
	case t.file != nil:
		return s.resolveURL(ctx, t.file)
	}
	return s.resolveRepo(ctx, t.repo, t.choice)
}

// hubHosts are the names of the default model hub.
var hubHosts = []string{"hf.co", "huggingface.co"}

func (s *Source) endpoint() string {
	return cmp.Or(strings.TrimSuffix(s.Endpoint, "/"), DefaultEndpoint)
}

// inHub returns the repository of a URL on the model hub, and the file if the URL names
// one.
func (s *Source) inHub(u *url.URL) (repo, file string, ok bool) {
	own, err := url.Parse(s.endpoint())
	if err != nil || u.Host != own.Host && !slices.Contains(hubHosts, u.Host) {
		return "", "", false
	}
	parts := strings.Split(strings.Trim(u.Path, "/"), "/")
	if len(parts) > 4 && (parts[2] == "resolve" || parts[2] == "blob") {
		return strings.Join(parts[:2], "/"), strings.Join(parts[4:], "/"), true
	}
	return strings.Join(parts[:min(2, len(parts))], "/"), "", true
}

// resolveURL returns the model in a single file at a URL.
func (s *Source) resolveURL(ctx context.Context, u *url.URL) (*Model, error) {
	name := path.Base(u.Path)
	response, err := s.look(ctx, u)
	if err != nil {
		return nil, err
	}
	file := File{Name: name, URL: u.String(), Size: response.ContentLength, tag: versionOf(response.Header)}
	return &Model{ID: strings.TrimSuffix(name, ".gguf"), Origin: u.Redacted(), Files: []File{file}}, nil
}

// look requests the size and version of a file with HEAD. If that fails it uses GET
// without reading the body, because an address that is signed for GET refuses HEAD.
func (s *Source) look(ctx context.Context, u *url.URL) (response *http.Response, err error) {
	for _, method := range []string{http.MethodHead, http.MethodGet} {
		var request *http.Request
		if request, err = http.NewRequestWithContext(ctx, method, u.String(), nil); err != nil {
			return nil, err
		}
		if response, err = s.do(request); err != nil {
			continue
		}
		response.Body.Close()
		if response.StatusCode == http.StatusOK {
			return response, nil
		}
		err = s.refused(response, u.Redacted())
	}
	return nil, err
}

// versionOf returns the version of a file in a form that If-Range accepts: a strong ETag,
// or the time of the last change, or "" if there is neither.
func versionOf(h http.Header) string {
	if tag := h.Get("ETag"); strings.HasPrefix(tag, `"`) {
		return tag
	}
	return h.Get("Last-Modified")
}

// entry is a file in the model hub's listing of a repository.
type entry struct {
	Type string `json:"type"`
	Path string `json:"path"`
	Size int64  `json:"size"`
	OID  string `json:"oid"`
	LFS  struct {
		OID  string `json:"oid"`
		Size int64  `json:"size"`
	} `json:"lfs"`
}

// maxPages is how many pages of a repository's files are read.
const maxPages = 20

// resolveRepo returns the model of a repository with the given quantization or file name.
// Without a choice, it returns the only model or the one with DefaultQuant.
func (s *Source) resolveRepo(ctx context.Context, repo, choice string) (*Model, error) {
	var all []entry
	page := s.endpoint() + "/api/models/" + repo + "/tree/main?recursive=true"
	for range maxPages {
		next, err := s.list(ctx, repo, page, &all)
		if err != nil {
			return nil, err
		}
		if page = next; page == "" {
			break
		}
	}
	chosen, err := choose(all, choice)
	if err != nil {
		return nil, fmt.Errorf("%s/%s: %w", s.endpoint(), repo, err)
	}
	m := &Model{ID: ModelID(chosen[0].Path), Origin: s.endpoint() + "/" + repo}
	folder := ""
	projector := projectorOf(all)
	m.TakesImages = projector != nil
	if m.TakesImages && s.Images {
		chosen = append(chosen, *projector)
		folder = m.ID + "/"
	}
	for _, e := range chosen {
		name := path.Base(e.Path)
		if err := checkName(name); err != nil {
			return nil, err
		}
		f := File{Name: folder + name, URL: s.endpoint() + "/" + repo + "/resolve/main/" + (&url.URL{Path: e.Path}).EscapedPath(), Size: e.Size, tag: e.OID}
		if len(e.LFS.OID) == 64 {
			f.SHA256, f.Size = strings.ToLower(e.LFS.OID), e.LFS.Size
		}
		m.Files = append(m.Files, f)
	}
	return m, nil
}

// list appends a page of a repository's files to all, and returns the next page.
func (s *Source) list(ctx context.Context, repo, page string, all *[]entry) (next string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, page, nil)
	if err != nil {
		return "", err
	}
	response, err := s.do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", s.refused(response, s.endpoint()+"/"+repo)
	}
	var entries []entry
	if err := json.UnmarshalRead(io.LimitReader(response.Body, 16<<20), &entries); err != nil {
		return "", fmt.Errorf("%s: the list of its files is not one that a model hub sends: %w", s.endpoint()+"/"+repo, err)
	}
	*all = append(*all, entries...)
	for _, link := range response.Header.Values("Link") {
		address, rest, ok := strings.Cut(strings.TrimPrefix(link, "<"), ">")
		if ok && strings.Contains(rest, `rel="next"`) && strings.HasPrefix(address, s.endpoint()+"/") {
			return address, nil
		}
	}
	return "", nil
}

// do sends a request, with the token if it is for the model hub. net/http removes the
// token when it follows a redirect to another host.
func (s *Source) do(r *http.Request) (*http.Response, error) {
	r.Header.Set("User-Agent", "kith")
	r.Header.Set("Accept-Encoding", "identity") // lengths and ranges must refer to the file's own bytes
	if s.Token != "" && s.isHub(r.URL) {
		r.Header.Set("Authorization", "Bearer "+s.Token)
	}
	response, err := s.Client.Do(r)
	if err != nil {
		var refused *url.Error
		if errors.As(err, &refused) {
			err = refused.Err // without the URL, which may contain a signature
		}
		if errors.Is(err, errRedirect) || errors.Is(err, errPrivate) {
			return nil, fmt.Errorf("%s: %w", r.URL.Host, err)
		}
		set := "HTTPS_PROXY if you set it"
		if s.isHub(r.URL) {
			set = "HF_ENDPOINT or HTTPS_PROXY if you set them"
		}
		return nil, temporary{fmt.Errorf("%s cannot be reached: %w; check the network, and %s", r.URL.Host, err, set)}
	}
	return response, nil
}

// isHub reports whether the URL is on the model hub.
func (s *Source) isHub(u *url.URL) bool { return strings.HasPrefix(u.String(), s.endpoint()+"/") }

// refused returns the error for a status other than success.
func (s *Source) refused(response *http.Response, what string) error {
	switch response.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		if !s.isHub(response.Request.URL) {
			return fmt.Errorf("%s refuses access (%s): it needs an account, or the address has expired; copy the address of the file itself again", what, response.Status)
		}
		if s.Token == "" {
			return fmt.Errorf("%s is not there, or needs an account (%s): check the name; if its page asks you to accept terms, do that and set HF_TOKEN to a token of yours", what, response.Status)
		}
		return fmt.Errorf("%s refuses the token in HF_TOKEN (%s): accept the terms on its page, and check that the token may read it", what, response.Status)
	case http.StatusNotFound, http.StatusGone:
		return fmt.Errorf("%s is not there (%s): check the name", what, response.Status)
	case http.StatusTooManyRequests:
		if !s.isHub(response.Request.URL) {
			break
		}
		return temporary{fmt.Errorf("%s limits how often it can be asked (%s): try again later, or set HF_TOKEN", what, response.Status)}
	}
	if response.StatusCode < 500 && response.StatusCode != http.StatusTooManyRequests {
		return fmt.Errorf("%s answers %s: check the address", what, response.Status)
	}
	return temporary{fmt.Errorf("%s answers %s: try again later", what, response.Status)}
}

// temporary is a failure that may be over later without a change by anyone: the network or
// a server did not answer.
type temporary struct{ error }

// Unwrap returns the failure itself.
func (t temporary) Unwrap() error { return t.error }
