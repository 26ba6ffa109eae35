package cluster

import (
	"container/list"
	"slices"
	"sync"
)

// feed holds what a node announces: records by key, in the order of their last changes. A
// reader gets the records that changed since its last read, each with its current value.
// A slow reader gets fewer and longer lines, so no queue grows.
type feed struct {
	mu       sync.Mutex
	sequence int64 // number of the last change
	records  map[any]*list.Element
	order    list.List // of *record; the last changed at the back
	removals []*record // oldest first
	messages []*record // oldest first
	since    int64     // removals up to this number are no longer known
	readers  map[chan struct{}]struct{}
}

// record is one announced item, such as a machine.
type record struct {
	key     any
	value   any   // nil: removed
	changed int64 // the sequence number of the last change
}

const (
	// maxRemovals is the maximum number of removals that are kept. A reader that is further
	// behind gets the complete state.
	maxRemovals = 4096
	// maxMessages is the maximum number of messages that are kept. A reader that is further
	// behind misses the older ones.
	maxMessages = 1024
)

// set announces the value of a record. With wake, the readers read at once; otherwise at
// their next interval.
func (f *feed) set(key, value any, wake bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.put(key, value)
	if wake {
		f.wake()
	}
}

// changed announces a record again, without wake, if it exists: its value has changed.
func (f *feed) changed(key any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.records[key]; e != nil {
		f.put(key, e.Value.(*record).value)
	}
}

// put sets a record. mu must be held.
func (f *feed) put(key, value any) *record {
	f.deleteRecord(key)
	f.sequence++
	r := &record{key: key, value: value, changed: f.sequence}
	if f.records == nil {
		f.records = make(map[any]*list.Element)
	}
	f.records[key] = f.order.PushBack(r)
	return r
}

// deleteRecord deletes a record. mu must be held.
func (f *feed) deleteRecord(key any) {
	if e := f.records[key]; e != nil {
		f.order.Remove(e)
		delete(f.records, key)
	}
}

// removeSilently deletes a record without announcing it.
func (f *feed) removeSilently(key any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.deleteRecord(key)
}

// remove announces the removal of a record, if it exists.
func (f *feed) remove(key any, wake bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.records[key]; e == nil || e.Value.(*record).value == nil {
		return
	}
	f.removals = append(f.removals, f.put(key, nil))
	if len(f.removals) > maxRemovals {
		f.since = f.removals[0].changed
		f.removals = f.deleteOldest(f.removals)
	}
	if wake {
		f.wake()
	}
}

// deleteOldest deletes the oldest of the records, unless its key has been set again, and
// returns the rest. mu must be held.
func (f *feed) deleteOldest(records []*record) []*record {
	oldest := records[0]
	if e := f.records[oldest.key]; e != nil && e.Value == oldest {
		f.deleteRecord(oldest.key)
	}
	return slices.Delete(records, 0, 1)
}

// messageKey is the key of a message: a pointer to it is unique. It is not empty, because
// pointers to empty structs may be equal.
type messageKey struct{ _ byte }

// send announces a message: a record that only the current readers get.
func (f *feed) send(message any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.messages = append(f.messages, f.put(new(messageKey), message))
	if len(f.messages) > maxMessages {
		f.messages = f.deleteOldest(f.messages)
	}
}

// after returns the records that changed after the given sequence number, oldest change
// first, and the new sequence number. If the number is 0, or if removals after it are no
// longer known, it returns everything except removals and messages, and complete is true.
func (f *feed) after(reached int64) (records []*record, sequence int64, complete bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sequence = max(f.sequence, 1)
	complete = reached == 0 || reached < f.since
	for e := f.order.Back(); e != nil; e = e.Prev() {
		r := e.Value.(*record)
		if !complete && r.changed <= reached {
			break
		}
		if _, message := r.key.(*messageKey); !complete || r.value != nil && !message {
			records = append(records, r)
		}
	}
	slices.Reverse(records)
	return records, f.sequence, complete
}

// changedAfter reports whether anything changed after the given sequence number.
func (f *feed) changedAfter(reached int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sequence > reached
}

// all returns all records that were not removed.
func (f *feed) all() []*record {
	records, _, _ := f.after(0)
	return records
}

// open adds a reader. Its channel receives a value when it should read at once.
func (f *feed) open() (woken chan struct{}, closed func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readers == nil {
		f.readers = make(map[chan struct{}]struct{})
	}
	woken = make(chan struct{}, 1)
	f.readers[woken] = struct{}{}
	return woken, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.readers, woken)
	}
}

// wake makes all readers read at once. mu must be held.
func (f *feed) wake() {
	for woken := range f.readers {
		select {
		case woken <- struct{}{}:
		default:
		}
	}
}
