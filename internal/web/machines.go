package web

import "time"

// Control is a change of the owner's to a machine: what is nil stays as it is.
type Control struct {
	Paused   *bool      `json:"paused,omitzero"`
	Until    *time.Time `json:"until,omitzero"`
	Hours    *string    `json:"hours,omitzero"`
	Timezone *string    `json:"timezone,omitzero"`
	Slots    *int       `json:"slots,omitzero"`
}
