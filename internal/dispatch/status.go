package dispatch

import "time"

// Status is the state of a Dispatcher, for the operator.
type Status struct {
	Running int           // calls received by this node that run on machines
	Waiting int           // calls received by this node that wait for one
	Oldest  time.Duration // time since the oldest waiting call arrived
}

// Status returns the current state.
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
