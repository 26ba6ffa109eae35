//go:build !llama

package llama

const compiledIn = false

func open(string) (*library, error) { return nil, ErrNoBackend }
