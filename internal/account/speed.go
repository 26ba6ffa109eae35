package account

import "time"

// Speed is how fast a machine runs a model, as the hub measured it.
type Speed struct {
	MachineID, Model string
	Measured         time.Time // time of the newest sample
	Samples          string    // JSON of fleet.Measurements
}
