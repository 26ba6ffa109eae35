package store

// giveToOwner does nothing: a new file inherits the permissions of its folder.
func giveToOwner(_, _ string) error { return nil }
