package host

// WhoseFolder returns nothing: Windows has access lists in place of owners.
func WhoseFolder(string) string { return "" }
