// Package column holds types of database columns that database/sql lacks.
package column

import (
	"database/sql/driver"
	"encoding/json/v2"
	"fmt"
)

// Models is a list of model ids, stored as JSON text.
type Models []string

// Value implements driver.Valuer.
func (m Models) Value() (driver.Value, error) {
	list, err := json.Marshal([]string(m))
	return string(list), err
}

// Scan implements sql.Scanner.
func (m *Models) Scan(value any) error {
	list, ok := value.(string)
	if !ok {
		return fmt.Errorf("a list of models is text, not %T", value)
	}
	return json.Unmarshal([]byte(list), (*[]string)(m))
}
