package dispatch

import "time"

// Status is how a Dispatcher is, for the operator.
type Status struct {
	Running int           // calls that came to this node and run on machines
	Waiting int           // calls that came to this node and wait for one
	Oldest  time.Duration // since the arrival of the waiting call that came first
}

// Status returns the present state.
func (d *Dispatcher) Status(now time.Time) Status {
	s := d.scheduler.status(now)
	s.Running = d.active.running()
	return s
}

func (s *scheduler) status(now time.Time) (status Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.queues {
		for _, c := range q.cohorts {
			if c.guests != nil {
				continue
			}
			status.Waiting += len(c.waiters)
			status.Oldest = max(status.Oldest, now.Sub(c.first.arrived))
		}
	}
	return status
}
