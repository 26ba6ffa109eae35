package account

import "time"

// Speed is how fast a machine runs a model, as the hub measured it.
type Speed struct {
	MachineID, Model string
	Measured         time.Time // the newest of the samples
	Samples          string    // JSON of fleet.Measurements
}
