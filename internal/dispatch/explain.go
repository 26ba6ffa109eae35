package dispatch

import (
	"fmt"
	"strconv"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// orderText explains why the first machine of a decision was tried before the second:
// "desk before attic: 18,200 of 19,000 prompt tokens are cached there, 4.4 s against 35 s
// expected". It contains only facts about the caller's own call and machines that the
// caller may use. It returns "" if there is no second machine.
func orderText(d *gateway.Decision) string {
	best, second := &d.Best, &d.Second
	if best.Machine == nil || second.Machine == nil {
		return ""
	}
	text := best.Machine.Name + " before " + second.Machine.Name + ": "
	e, other := best.Expectation, second.Expectation
	switch slower := e.Seconds > 1.1*other.Seconds; {
	case best.Class != second.Class:
		return text + best.Class.String() + " machines come before " + second.Class.String() + " ones"
	case best.Class == fleet.Grouped && best.Standing < fleet.Established && second.Standing == fleet.Established:
		return text + "one call in ten goes to a newcomer of the group, and " + standingText(best)
	case best.Class == fleet.Grouped && second.Standing < fleet.Established:
		return text + standingText(second)
	case slower && !e.Measured:
		return text + "it was not measured yet"
	case slower:
		return text + "it is to be measured again"
	case e.Cached > other.Cached:
		text += group(e.Cached) + " of " + group(d.Prompt) + " prompt tokens are cached there, "
	}
	text += seconds(e.Seconds) + " against " + seconds(other.Seconds) + " expected"
	if e.Seconds > other.Seconds {
		text += ", which counts as equal"
	}
	return text
}

// standingText describes what a newcomer has served in its group. It omits how many
// members must have been served to be established, because that depends on who is in the
// group.
func standingText(c *fleet.Candidate) string {
	_, calls, members := c.Offer.Load.Standing(c.Circle())
	if calls == 0 {
		return c.Machine.Name + " has served no member of the group yet"
	}
	noun := "members"
	if members == 1 {
		noun = "member"
	}
	return fmt.Sprintf("%s is new in the group, where it served %d of %d calls, of %d %s",
		c.Machine.Name, min(calls, fleet.EstablishedCalls), fleet.EstablishedCalls, members, noun)
}

// seconds formats a duration for people: 0.4 s, 31 s, 12 min.
func seconds(s float64) string {
	switch {
	case s >= 600:
		return fmt.Sprintf("%.0f min", s/60)
	case s >= 9.95:
		return fmt.Sprintf("%.0f s", s)
	default:
		return fmt.Sprintf("%.1f s", s)
	}
}

// group formats a number with commas between thousands.
func group(n int) string {
	text := strconv.Itoa(n)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}
