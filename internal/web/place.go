package web

import (
	"net/url"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
)

// placeIn is where the page of a list begins that a query asks for: ?before= with
// the place that the page before it ended at, or with any time; none: at the
// beginning.
func placeIn(query url.Values) (account.Place, error) {
	text := query.Get("before")
	if text == "" {
		return account.Place{}, nil
	}
	moment, id, _ := strings.Cut(text, ",")
	at, err := time.Parse(time.RFC3339Nano, moment)
	if err != nil || at.UnixMilli() <= 0 || strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" {
		return account.Place{}, fault.New(fault.InvalidRequest, "before is a time like 2026-11-21T10:30:00Z, or what a page before this one ended with, not %.40q", text).WithParam("before")
	}
	return account.Place{At: at, ID: id}, nil
}

// pageOf is the first of what was found, as many as a page holds, and the place
// that the next page begins at; empty: there is none. One more than a page holds
// was asked for, so that it is known.
func pageOf[T any](found []T, holds int, place func(T) account.Place) (page []T, next string) {
	if len(found) <= holds {
		return found, ""
	}
	last := place(found[holds-1])
	return found[:holds], last.At.UTC().Format(time.RFC3339Nano) + "," + last.ID
}
