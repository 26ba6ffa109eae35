package main

import (
	"fmt"
	"slices"
	"strings"
)

// figures are the readings of a result.
type figures struct {
	first50, first95 float64 // time to the first token, seconds
	mean, last95     float64 // time of the call
	cached           float64 // prompt tokens served from a cache, of all
	restarts         int
}

func (r *result) figures() figures {
	var f figures
	var first, last []float64
	tokens, cached := 0, 0
	for _, c := range r.calls {
		first, last = append(first, c.first-c.arrived), append(last, c.ended-c.arrived)
		f.mean += (c.ended - c.arrived) / float64(len(r.calls))
		tokens, cached = tokens+c.tokens, cached+c.cached
		f.restarts += c.restarts
	}
	f.first50, f.first95, f.last95 = quantile(first, 50), quantile(first, 95), quantile(last, 95)
	f.cached = float64(cached) / float64(tokens)
	return f
}

// quantile sorts the values and returns the one that so many percent are below.
func quantile(values []float64, percent int) float64 {
	slices.Sort(values)
	return values[len(values)*percent/100]
}

// report returns the tables as Markdown.
func report(results []result) string {
	var s strings.Builder
	at := map[string]figures{}
	key := func(policy string, load float64) string { return fmt.Sprint(policy, load) }
	for _, load := range loads {
		fmt.Fprintf(&s, "\n| %.0f %% load | first token p50 / p95, s | call mean / p95, s | of prompts from a cache |\n|---|---|---|---|\n", 100*load)
		for i := range results {
			r := &results[i]
			if r.load != load {
				continue
			}
			f := r.figures()
			at[key(r.policy, load)] = f
			name := r.policy
			if name == oursName {
				name = "**" + name + "**"
			}
			fmt.Fprintf(&s, "| %s | %s / %s | %s / %s | %.0f %% |\n", name,
				seconds(f.first50), seconds(f.first95), seconds(f.mean), seconds(f.last95), 100*f.cached)
		}
	}
	s.WriteString("\n| kith | goal |")
	for _, load := range loads {
		fmt.Fprintf(&s, " %.0f %% |", 100*load)
	}
	s.WriteString("\n|---|---|" + strings.Repeat("---|", len(loads)) + "\n")
	for _, row := range goals {
		fmt.Fprintf(&s, "| %s | %s |", row.name, row.text)
		for _, load := range loads {
			value := row.ratio(at[key(row.policy, load)], at[key(row.other, load)])
			mark := ""
			if row.met != nil && !row.met(value) {
				mark = " **missed**"
			}
			digits := 2
			if value < 0.1 {
				digits = 3
			}
			fmt.Fprintf(&s, " %.*f%s |", digits, value, mark)
		}
		s.WriteString("\n")
	}
	return s.String()
}

// goals are the ratios that the order is judged by.
var goals = []struct {
	name, text    string
	policy, other string
	ratio         func(policy, other figures) float64
	met           func(float64) bool
}{
	{"first token p50, to the order of before", "≤ 0.33", oursName, beforeName, firstMedian, func(v float64) bool { return v <= 1./3 }},
	{"first token p95, to the order of before", "≤ 0.50", oursName, beforeName, firstTail, func(v float64) bool { return v <= 0.5 }},
	{"first token p50, to engines without caches", "≤ 0.33", oursName, asItWasName, firstMedian, func(v float64) bool { return v <= 1./3 }},
	{"first token p95, to engines without caches", "≤ 0.50", oursName, asItWasName, firstTail, func(v float64) bool { return v <= 0.5 }},
	{"call mean, to the oracle", "≤ 1.15", oursName, oracleName, func(a, b figures) float64 { return a.mean / b.mean }, func(v float64) bool { return v <= 1.15 }},
	{"prompt tokens from a cache, to the oracle", "≥ 0.95", oursName, oracleName, func(a, b figures) float64 { return a.cached / b.cached }, func(v float64) bool { return v >= 0.95 }},
	{"the oracle: first token p50, to the order of before", "", oracleName, beforeName, firstMedian, nil},
}

func firstMedian(a, b figures) float64 { return a.first50 / b.first50 }
func firstTail(a, b figures) float64   { return a.first95 / b.first95 }

// seconds returns a time with two significant digits, and with no decimals from 10 s on.
func seconds(v float64) string {
	switch {
	case v < 1:
		return fmt.Sprintf("%.2f", v)
	case v < 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.0f", v)
	}
}
