package store

// giveToOwner does nothing: a new file has the rights of its folder.
func giveToOwner(_, _ string) error { return nil }
