package engine

import "slices"

// Move has the Finder look at the places of c from now on. What it knows of a
// place that stays is kept, so that a call there goes on being a call to the
// same engine; those of other places end by themselves. Look then finds what is
// new. On an error nothing has changed.
func (f *Finder) Move(c Config) error {
	c.Log, c.Transport = f.log, f.rt
	next, err := NewFinder(c)
	if err != nil {
		return err
	}
	f.looking.Lock()
	defer f.looking.Unlock()
	for _, s := range next.spots {
		if i := slices.IndexFunc(f.spots, func(old *spot) bool { return old.base == s.base }); i >= 0 {
			old := f.spots[i]
			s.known, s.engine, s.load, s.missed, s.finding = old.known, old.engine, old.load, old.missed, old.finding
		}
	}
	f.spots = next.spots
	return nil
}
