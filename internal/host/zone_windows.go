package host

import "github.com/thlib/go-timezone-local/tzlocal"

// Zone returns the IANA name of this computer's time zone, or why it is not known. It
// is the zone of Windows' settings; TZ has no meaning there.
func Zone() (string, error) { return tzlocal.LocalTZ() }
