package api

import (
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
)

// List is the envelope of a list.
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

// views converts records to their views.
func views[Record, View any](records []Record, view func(Record) View) []View {
	all := make([]View, len(records))
	for i, r := range records {
		all[i] = view(r)
	}
	return all
}

// pageStart returns the start of a page. before is the end of the previous page, or any
// time; empty: start with the newest.
func pageStart(before string) (account.Place, error) {
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

// Paged returns at most size records that find returns after the page that ended at
// before, and the start of the next page; empty: this is the last page.
func Paged[T any](before string, size int, find func(from account.Place, most int) ([]T, error), place func(T) account.Place) (page []T, next string, err error) {
	from, err := pageStart(before)
	if err != nil {
		return nil, "", err
	}
	found, err := find(from, size+1)
	if err != nil || len(found) <= size {
		return found, "", err
	}
	return found[:size], placeText(place(found[size-1])), nil
}

// placeText formats a place for the end of a page.
func placeText(last account.Place) string {
	return last.At.UTC().Format(time.RFC3339Nano) + "," + last.ID
}
