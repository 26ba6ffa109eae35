package host

import "github.com/thlib/go-timezone-local/tzlocal"

// Zone returns the IANA name of this computer's time zone, or an error if it is unknown.
// It uses Windows' settings; TZ has no meaning there.
func Zone() (string, error) { return tzlocal.LocalTZ() }
