package host

// WhoseFolder returns "": Windows uses access lists instead of owners.
func WhoseFolder(string) string { return "" }
