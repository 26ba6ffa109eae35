package api

import (
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
)

// List is the envelope of a listing.
type List[T any] struct {
	Object string `json:"object"`
	Data   []T    `json:"data"`
}

func listOf[T any](data []T) List[T] {
	if data == nil {
		data = []T{}
	}
	return List[T]{"list", data}
}

// PageStart returns where a page of a listing begins. before is where the page
// before it ended, or any time; empty: at the newest.
func PageStart(before string) (account.Place, error) {
	if before == "" {
		return account.Place{}, nil
	}
	moment, id, _ := strings.Cut(before, ",")
	at, err := time.Parse(time.RFC3339Nano, moment)
	if err != nil || at.UnixMilli() <= 0 || strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" {
		return account.Place{}, fault.New(fault.InvalidRequest, "before is a time like 2026-11-21T10:30:00Z, or what a page before this one ended with, not %.40q", before).WithParam("before")
	}
	return account.Place{At: at, ID: id}, nil
}

// PageOf returns the first size of what was found, and where the next page begins;
// empty: this is the last page. The caller looks for one more than size.
func PageOf[T any](found []T, size int, place func(T) account.Place) (page []T, next string) {
	if len(found) <= size {
		return found, ""
	}
	last := place(found[size-1])
	return found[:size], last.At.UTC().Format(time.RFC3339Nano) + "," + last.ID
}
