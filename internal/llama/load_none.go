//go:build !llama

package llama

const compiledIn = false

func open(string, []gpuFile) (*library, error) { return nil, ErrNoBackend }
